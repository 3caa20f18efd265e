"""What happens when: a step's warm-up, its capture, and its replay on other inputs, as an audit saw them.

warm-up   Python runs the step, and each launch runs on the device at once
capture   Python runs it again; launches become nodes of a graph and do not run
replay    the graph launches; what Python would do now is known from the audit's eager pass

A `Timeline` is made from the evidence of one audit and holds nothing that did not happen in it.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from mrv2lab.audit.atoms import MISSING
from mrv2lab.audit.driver import audit
from mrv2lab.audit.evidence import Evidence, kept
from mrv2lab.audit.recorder import Capture
from mrv2lab.audit.report import AuditReport, Kind, Place
from mrv2lab.audit.trace import Event, Trace
from mrv2lab.errors import AuditError

Phase = Literal["warm-up", "capture", "replay"]
PHASES: tuple[Phase, ...] = ("warm-up", "capture", "replay")
_FROZEN: tuple[Kind, ...] = ("frozen-host-value", "moved-address")


@dataclass(frozen=True)
class Happening:
    """A line that reads host values, or one piece of device work."""

    name: str  # the kernel or op; empty for a line that only reads
    place: Place | None  # the line
    key: tuple[int, str, int]  # the same in two phases for the same moment
    in_python: bool  # a line of Python did it, in this phase
    in_graph: bool  # it was written into a graph, or a graph did it
    on_device: bool  # the device did it, in this phase
    is_launch: bool = False  # it is a kernel that Python launches by itself, not one of torch's ops
    # host values that the line reads, as the source names them; for work, where its tensors lie
    values: tuple[tuple[str, Any], ...] = ()

    @property
    def is_work(self) -> bool:
        return bool(self.name)


@dataclass(frozen=True)
class Frozen:
    """What the graph holds on to: the first finding of such a kind."""

    kind: Kind  # of the finding
    subject: str  # a host value as the source names it, or a tensor
    old: Any  # the value or the address at capture
    new: Any  # and now
    place: Place  # the line that read it
    label: str  # under which `Happening.values` has it

    @property
    def is_address(self) -> bool:
        return self.kind == "moved-address"


@dataclass(frozen=True)
class Timeline:
    """One run of one step."""

    name: str  # of the step or the variant
    backend: str  # executor, `cuda` or `emulated`
    phases: dict[str, tuple[Happening, ...]]  # what happened in each of `PHASES`, in order
    eager: tuple[Happening, ...]  # what an eager pass did on the inputs of the replay
    frozen: Frozen | None  # what the graph holds on to, if the audit found such a thing
    # work that the graph does otherwise than the eager pass, or not at all; in order
    affected: tuple[Happening, ...]
    role: str | None = None  # of the variant, where it is one

    @property
    def goes_wrong(self) -> bool:
        """The replay did other work than the eager pass, or the same work otherwise."""
        return self.frozen is not None or bool(self.affected)


def timeline(
    step: Callable[[], Any],
    *,
    vary: Callable[[], Any] | None = None,
    reset: Callable[[], Any] | None = None,
    backend: str = "auto",
    role: str | None = None,
) -> Timeline:
    """Audit a step and return what happened when. Arguments and exceptions as in `audit`.

    Args:
        role: of `results.Role`, where it is known; it gives the picture its colours.

    Raises:
        AuditError: also for a step whose audit stopped before there was a replay to look at.
    """
    found = of_audit(lambda: audit(step, vary=vary, reset=reset, backend=backend))
    return replace(found, name=getattr(step, "__name__", "step"), role=role)


def of_audit(make: Callable[[], AuditReport]) -> Timeline:
    """The timeline of whatever audit `make` makes. AuditError: it stopped before there was a replay."""
    with kept() as seen:
        report = make()
    if not seen:
        first = next(iter(report.findings), None)
        why = f"{first.kind} of {first.subject}" if first else "nothing is captured there"
        raise AuditError(f"{report.step} has no replay to draw: {why}")
    evidence = seen[-1]
    captures, made = evidence.replayed, evidence.made
    warm_up = (captures[0].warm_up if captures else made.last_pass()).anchored()
    eager = _numbered(_python(evidence.eager, evidence.eager.own()))
    return Timeline(
        name=report.step,
        backend=report.backend,
        phases={
            "warm-up": _numbered(_python(warm_up, warm_up.own())),
            "capture": _numbered(_captured(captures, made)),
            "replay": _numbered(_replayed(evidence)),
        },
        eager=eager,
        frozen=_frozen(evidence, report),
        affected=_affected(evidence, report, eager),
    )


# ---- phases ----


def _python(trace: Trace, events: Iterable[Event], *, captured: bool = False) -> Iterator[Happening]:
    """What lines of Python did in a pass, reads and work in order."""
    order = {position: i for i, position in enumerate(trace.values)}
    reads = deque(_reads(trace))
    for event in events:
        if not event.is_work or (captured and not event.in_graph):
            continue
        while reads and order[reads[0].key[0]] <= order.get(event.key[0], -1):
            yield reads.popleft()
        yield _work(trace, event, in_python=True, in_graph=captured, on_device=not captured)
    yield from reads


def _reads(trace: Trace) -> Iterator[Happening]:
    positions = trace.lines.positions
    for position, values in trace.values.items():
        both = zip(positions.atoms(position), values, strict=True)
        if named := tuple((atom.text, value) for atom, value in both if value is not MISSING):
            at = positions.place(position), (position, "", 0)
            yield Happening("", *at, in_python=True, in_graph=False, on_device=False, values=named)


def _work(trace: Trace, event: Event, **lanes: bool) -> Happening:
    addresses = tuple((tensor.label, tensor.address) for tensor in event.tensors)
    lanes["is_launch"] = event.sort == "launch"
    return Happening(event.name, trace.place(event), event.key, values=addresses, **lanes)


def _captured(captures: list[Capture], made: Trace) -> Iterator[Happening]:
    """The captures, and what ran eagerly where one was broken off and the next had not begun."""
    for number, this in enumerate(captures):
        yield from _python(this.trace, this.trace.own(), captured=True)
        if this is not captures[-1]:
            between = made.events[this.begun : captures[number + 1].begun]
            issued = [event for event in between if isinstance(event, Event)]
            yield from _python(_part(made, issued), issued)


def _replayed(evidence: Evidence) -> Iterator[Happening]:
    """Graphs and what Python did between them."""
    issued: list[Event] = []
    for event in evidence.run.events:
        if isinstance(event, Event):
            issued.append(event)
            continue
        yield from _python(_part(evidence.run, issued), issued)
        issued = []
        capture = evidence.by_graph.get(id(event))
        for inner in capture.trace.own() if capture else ():
            if capture and inner.is_work and inner.in_graph:
                yield _work(capture.trace, inner, in_python=False, in_graph=True, on_device=True)
    rest = _part(evidence.run, issued) if evidence.run.replayed() else evidence.run
    yield from _python(rest, issued)


def _part(trace: Trace, events: list[Event]) -> Trace:
    """The lines of a pass that run in the calls which issued these events, from the first to the last."""
    positions = trace.lines.positions
    ran = list(trace.values)
    order = {position: i for i, position in enumerate(ran)}
    if not (at := [order[event.key[0]] for event in events if event.key[0] in order]):
        return Trace(trace.lines)
    calls = {parent for event in events for parent in positions.chain(event.key[0])[1:]}
    chosen = [p for p in ran[: max(at) + 1] if p in calls or positions.parent(p) in calls]
    return Trace(trace.lines, {position: trace.values[position] for position in chosen})


def _numbered(happenings: Iterator[Happening]) -> tuple[Happening, ...]:
    """With keys that count anew in each phase, so that phases can be compared; each line once a turn."""
    turns: Counter[tuple[int, str]] = Counter()
    found = []
    for happening in happenings:
        at = happening.key[:2]
        if turns[at] and not happening.is_work:
            continue  # a line that both parts of a broken capture lie in
        found.append(replace(happening, key=(*at, turns[at])))
        turns[at] += 1
    return tuple(found)


# ---- what went wrong ----


def _frozen(evidence: Evidence, report: AuditReport) -> Frozen | None:
    found = next((f for f in report.findings if f.kind in _FROZEN), None)
    if found is None or found.change is None or found.where is None:
        return None
    label = found.subject
    if found.kind == "moved-address":  # the parameter under which work is given the tensor
        at = (pair for pair in evidence.pairs() if evidence.eager.place(pair[1]) == found.where)
        tensors = (both for captured, event, _ in at for both in captured.tensors_with(event))
        given = ((new.label, (old.address, new.address)) for old, new in tensors if old and new)
        label = next((name for name, addresses in given if addresses == found.change), label)
    return Frozen(found.kind, found.subject, *found.change, found.where, label)


def _affected(evidence: Evidence, report: AuditReport, eager: tuple[Happening, ...]) -> tuple[Happening, ...]:
    if not report.findings or not evidence.replayed:
        return ()
    done = Counter((event.name, trace.place(event)) for event, trace in evidence.done.values())
    moved = {f.change[0] for f in report.findings if f.kind == "moved-address" and f.change}
    differently = {
        event.key
        for captured, event, _ in evidence.pairs()
        if (captured.grid, captured.scalars, captured.shapes) != (event.grid, event.scalars, event.shapes)
        or any(tensor.address in moved for tensor in captured.tensors)
    }
    found = []
    for happening in (h for h in eager if h.is_work):
        done[happening.name, happening.place] -= 1  # by line: work beside the anchor has other keys
        if happening.key in differently or done[happening.name, happening.place] < 0:
            found.append(happening)
    return tuple(found)
