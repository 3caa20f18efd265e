"""unwritten-read: what came out, or where memory was touched, depends on memory nobody wrote."""

import ast
from collections.abc import Callable, Hashable, Mapping, Set
from functools import partial
from typing import TypeVar

from mrv2lab.audit import missing_edge
from mrv2lab.audit.atoms import statements_at
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import FURTHER, Allocation
from mrv2lab.audit.passes import NONE, Pass, Passes
from mrv2lab.audit.recorder import Session
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.results import agree
from mrv2lab.audit.trace import Trace
from mrv2lab.audit.writers import UnwrittenIndex
from mrv2lab.errors import AuditError, NotRepeatable

KIND, SHORT, RANK = "unwritten-read", "unwr", 4
ASKED = "always"
_MOST_UNWRITTEN = 8

T = TypeVar("T")


def find(evidence: Evidence) -> Findings:
    """Allocations whose initial content reached a result. AuditError: it differs, and nobody knows why."""
    passes, results = evidence.passes, evidence.results
    if missing_edge.is_found(evidence):
        return
    unwritten = _in_graphs(evidence)
    if not unwritten and evidence.repeats:
        unwritten = _otherwise(passes, evidence.eager_pass)
    elif not unwritten:
        try:
            third = passes.eager()  # a pass may have used something up, once
            if not agree(third.results, results.eager):
                _refuse_repetition(passes, third.trace, third.trace)
            unwritten = eagerly(passes)
        except AuditError:
            if not evidence.found:
                raise
    for allocation in unwritten:
        yield evidence.order(allocation.position), finding(evidence.session, allocation)


def finding(session: Session, allocation: Allocation) -> Finding:
    """Of an allocation whose initial content reached a result."""
    place = session.positions.place(allocation.position)
    tensor = f"the {allocation.dtype} tensor of shape {list(allocation.shape)}"
    text = f"a result changes with what {tensor} held before anybody wrote it"
    return Finding(KIND, _target(place), text, place)


def eagerly(passes: Passes) -> list[Allocation]:
    """Allocations whose pattern shows in the result of an eager pass. AuditError: it differs without them."""
    clean, again = passes.eager(), passes.eager()
    if not agree(clean.results, again.results):
        _refuse_repetition(passes, clean.trace, again.trace)
    candidates = {shadow.allocation.cell: shadow.allocation for _, shadow in clean.watched.handed_out}

    def shows(second: Set[int]) -> bool:
        return not agree(passes.eager(second).results, clean.results)

    return responsible(candidates, shows, partial(_line, passes.session)) or _otherwise(passes, clean)


def _in_graphs(evidence: Evidence) -> list[Allocation]:
    """Allocations whose pattern a replay lets through to a result."""
    passes = evidence.passes
    candidates = {a.cell: a for capture in evidence.captures for a in capture.allocations}
    candidates |= {-1 - shadow.allocation.cell: shadow.allocation for _, shadow in passes.kept()}

    def shows(second: Set[int]) -> bool:
        return not agree(passes.run(second).results, evidence.results.run)

    found = responsible(candidates, shows, partial(_line, passes.session))
    goes_on = found and any(shows(NONE) for _ in range(2))  # as a step with graphs of its own may, by turns
    return [] if goes_on else found


def _otherwise(passes: Passes, clean: Pass) -> list[Allocation]:
    """What an eager pass has read and two patterns do not tell, by further ones."""

    def shows(which: int, second: Set[int]) -> bool:
        try:
            return not agree(passes.eager(second, which).results, clean.results)
        except AuditError:  # the step raises, under this pattern alone
            return True

    read, line = clean.watched.writers.read, partial(_line, passes.session)
    found = (responsible(read, partial(shows, which), line) for which in (FURTHER if read else ()))
    return next(filter(None, found), [])


def _line(session: Session, allocation: Allocation) -> Hashable:
    """Where memory was asked for: each layer of a model does so at the same place."""
    return session.positions.place(allocation.position) or allocation.position


def responsible(
    candidates: Mapping[int, T],
    shows: Callable[[Set[int]], bool],
    alike: Callable[[T], Hashable] | None = None,
) -> list[T]:
    """Those of the candidates that make a difference, by halving; about log2 of their number of runs each. Of
    those that are `alike`, the first one."""
    found, told, groups = list[T](), set[Hashable](), [sorted(candidates)]
    while groups and len(found) < _MOST_UNWRITTEN:
        group = [n for n in groups.pop() if not (alike and told and alike(candidates[n]) in told)]
        if not group or not shows(set(group)):
            continue
        if len(group) == 1:
            found.append(candidates[group[0]])
            told |= {alike(found[-1])} if alike else set()
        else:
            groups += [group[len(group) // 2 :], group[: len(group) // 2]]
    return found


def _refuse_repetition(passes: Passes, first: Trace, second: Trace) -> None:
    """Two passes gave different results under the same pattern. AuditError: always."""
    parted = next((e for e in second.own() if first.get(e.key) is None), None)
    work = [event for event in second.own() if event.is_work]
    event = next(iter([*second.random, *filter(None, [parted]), *work[-1:]]), None)
    graph = f"the graph it replays at {second.replayed_at}"
    if any(one not in passes.session.graphs for one in second.replayed()):
        graph += ". It was captured before the audit began: what such a graph writes is not known"
    seen = f"{event.name} at {second.place(event)}" if event else graph
    raise NotRepeatable(f"the step cannot be repeated: other results each time, see {seen}")


def _target(place: Place | None) -> str:
    """What the line that allocates assigns to; the line itself if it assigns to nothing."""
    if place is None:
        return "torch.empty"
    assignments = [s for s in statements_at(place.file, place.line) if isinstance(s, ast.Assign)]
    allocating = [s for s in assignments if "empty" in ast.unparse(s.value)]  # others may share the line
    target = next(iter(allocating or assignments), None)
    return ast.unparse(target.targets[0]) if target else place.source


def of_stop(session: Session, stop: UnwrittenIndex) -> Finding:
    """The read at which a pass was stopped, because it would have addressed memory by garbage."""
    allocated = session.positions.place(stop.allocated) if stop.allocated else None
    origin = f", allocated at {allocated}" if allocated else ", made by a capture that was never replayed"
    text = f"{stop.reader} takes addresses or loop bounds from it{origin}, and nobody has written it"
    return Finding(KIND, stop.subject, text, session.positions.place(stop.position))
