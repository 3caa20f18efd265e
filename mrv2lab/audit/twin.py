"""Two fresh engines, one captured and one not: what leaks into both passes of an audit shows between them."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from mrv2lab.audit import (
    launches,
    left_behind,
    moved_address,
    names,
    not_rearmed,
    overwritten_output,
    padding_leak,
    stale_input,
)
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.fresh import (
    Fresh,
    Request,
    Tensors,
    are_alike,
    compared,
    counted_of,
    engine_of,
    holds_same,
    outputs_of,
    results_off,
    serve,
)
from mrv2lab.audit.history import since
from mrv2lab.audit.lines import same, users_running
from mrv2lab.audit.memory import clone, pattern, put, storage_of
from mrv2lab.audit.passes import NUM_REQUESTS, Pass, Passes, contents, naming, nothing
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.results import Comparison, Results, apart, changed
from mrv2lab.audit.trace import Event
from mrv2lab.audit.watched import Watched
from mrv2lab.errors import AuditError, counted
from mrv2lab.graphs.base import replayed

_MOST_OF_FRAME = 200  # objects that are looked at after each line
_BEFORE_ALL = -1  # where the pass meets what was wrong before it began


def find(evidence: Evidence, kind: str) -> Findings:
    """Serve requests on both. Of the first that differs: its causes, or else itself, as `kind`."""
    passes, engine = evidence.passes, evidence.passes.engine
    num_notes = len(passes.notes)
    if engine.twin is None:
        return
    with passes.made.unwatched(), naming("when it was served"):
        passes.notes += _shared_by_all(passes)
        eager_one, backend = engine_of(evidence), passes.session.backend
        theirs = serve(eager_one)
        if any(one.num_replays for one in theirs):
            passes.notes.append(
                "both fresh engines replay graphs: give the twin an `eager` that replays none"
            )
        if evidence.captures and _replays_later(evidence):
            evidence = replace(evidence, captures=[])
        captured = engine_of(evidence, backend, bool(evidence.captures))
        ours = serve(captured)
    passes.notes += _told(captured.first, eager_one.first, ours, theirs, captured.graph is None)
    working, returned_alone = set[str](), (ours, theirs)
    beside = _with_beside(ours, theirs), _with_beside(theirs, theirs)
    for number, (one, other), (ours, theirs) in _rounds(returned_alone, beside):
        if one.error is not None:
            yield 0, _raised(evidence, number, one.error, kind)
            return
        off = [path for path in results_off(one, other) if path not in working]
        again = serve(engine_of(evidence)) if off else []
        again = _with_beside(again, theirs) if theirs is beside[1] else again
        if off and not all(map(are_alike, theirs, again)):
            passes.notes.append("two fresh engines that run eagerly give different results: not compared")
            return
        if large := eager_one.hashed.intersection(off):  # their contents say more
            del passes.notes[num_notes:]
            yield from find(replace(evidence, whole=evidence.whole | large), kind)
            return
        if off and _draws_others(evidence, number, off, ours, theirs):
            text = (
                f"draws other random numbers than a fresh engine that runs eagerly: {off[0]} was not compared"
            )
            passes.notes.append(f"{text}; audit it where nothing is drawn, with argmax")
            working.update(off)
            continue
        is_rest = other.results.keys() - working - {*off}
        if off and is_rest and _is_to_work_with(evidence, number, off, ours, theirs):
            working.update(off)
        elif off:
            eager = "a fresh engine that runs eagerly"
            if one.num_replays is not None:
                text = f"request {number + 1} of those in a row: {eager} gives another result"
                watched = Watched(evidence, number)
                causes, place = watched.causes(one.results, other.results), watched.maker(off[0])
                first = causes[0][1] if causes else None
                if first and first.kind == stale_input.KIND and first.subject in watched.as_found:
                    earlier = since(evidence, number, first.subject)
                    causes = [*((_BEFORE_ALL, cause) for _, cause in earlier), *causes]
            else:
                text = f"what is made of the results differs from what {eager} makes of them"
                causes, place = list(_kept(evidence, captured, ours, theirs)), None
            text += "; this line makes it there" if place else "; no single part of the step explains it"
            yield from causes or [(0, Finding(kind, off[0], text, place))]
            return
    ours, theirs = returned_alone
    if len(of_ours := _requests(ours)) != len(of_theirs := _requests(theirs)):
        text = f"{counted(len(of_ours), 'request')} can be prepared in a row"
        yield 0, Finding(kind, engine.name, f"{text}, and {len(of_theirs)} where a fresh engine runs eagerly")
        return
    if found := list(padding_leak.in_a_row(evidence)):
        yield from found
        return
    passes.notes += _left_open(of_ours, of_theirs)


def _with_beside(ours: list[Request], theirs: list[Request]) -> list[Request]:
    """Requests whose results are also what the step writes beside what it returns, in an engine that runs
    eagerly."""
    return [
        one._replace(results={p: one.held[p][0] for p in other.beside if p in one.held} | one.results)
        for one, other in zip(ours, theirs, strict=False)
    ]


def _rounds(
    *rounds: tuple[list[Request], list[Request]],
) -> Iterator[tuple[int, tuple[Request, Request], tuple[list[Request], list[Request]]]]:
    for both in rounds:
        yield from ((number, pair, both) for number, pair in enumerate(_pairs(*both)))


def _shared_by_all(passes: Passes) -> Iterator[str]:
    """State of the process: what the audited engine has come to hold since its audit began, and an engine
    that nobody has served holds too."""
    begun, now = passes.engine.begun, contents(passes.engine.roots)
    made = contents(names.Reachable(passes.engine.twin().step)) if begun else {}  # type: ignore[misc]
    filled = (at for at, value in now.items() if not same(begun.get(at), value) and same(made.get(at), value))
    if told := ", ".join(islice(filled, 3)):
        yield f"fresh engines share what a step has filled, and may be right or wrong by that: {told}"


def _requests(served: list[Request]) -> list[Request]:
    return [one for one in served if one.num_replays is not None or one.error is not None]


def _pairs(ours: list[Request], theirs: list[Request]) -> Iterator[tuple[Request, Request]]:
    """Requests, and what the caller makes of all."""
    yield from zip(_requests(ours), _requests(theirs), strict=False)
    ends = [served[-1] for served in (ours, theirs) if served[len(_requests(served)) :]]
    if len(ends) == 2:
        yield ends[0], ends[1]


def _told(
    call: Tensors, right: Tensors, ours: list[Request], theirs: list[Request], is_own: bool
) -> Iterator[str]:
    """What is no fault, or was not compared."""
    if (number := len(_requests(theirs))) < NUM_REQUESTS:
        yield f"its twin serves {counted(number, 'request')} and no more"
    if unseen := {path for one in theirs for path in one.unseen}:
        yield f"of what fresh engines give, not compared: {', '.join(sorted(unseen)[:3])}"
    off = (path for path, tensor in right.items() if path in call and not holds_same(call[path], tensor))
    if is_own and (first := next(off, None)):  # nobody has prepared it, so this need be no fault
        yield f"the call before any request gives another result than eagerly: {first}"
    of_requests = [one.num_replays for one in ours if one.num_replays is not None]
    if 0 in of_requests and any(of_requests):
        text = f"{of_requests.count(0)} of {len(of_requests)} requests in a row without a graph"
        yield f"{text}, the first is number {1 + of_requests.index(0)}"


def _left_open(ours: list[Request], theirs: list[Request]) -> Iterator[str]:
    """Where nothing is found: what differs and was not taken for a result, and what rounding may explain."""
    held, excused, where = dict[str, int](), 0.0, ""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for path, (tensor, _) in other.held.items():
            mine, storage = one.held.get(path, (None, 0))
            if storage not in one.outputs and mine is not None and not holds_same(mine, tensor):
                held.setdefault(path, number + 1)
        for path, tensor in other.results.items():
            mine = one.results.get(path)
            is_like = mine is not None and tensor.is_floating_point() and holds_same(mine, tensor)
            error = apart(mine, tensor, by_element=True) if mine is not None and is_like else 0.0
            if error > excused:
                excused, where = error, path
        rows = (path for path in other.whole if not holds_same(one.whole.get(path), other.whole[path]))
        for path in rows if other.rows is not None else ():
            held.setdefault(f"{path} behind {other.rows} rows", number + 1)
    if held:
        told = ", ".join(f"{path} (from request {number} on)" for path, number in list(held.items())[:3])
        yield f"differs between fresh engines, and was not taken for a result: {told}"
    if excused:
        yield f"single numbers are up to {excused:.2g} apart, as rounding may explain: {where}"


def _replays_later(evidence: Evidence) -> bool:
    """Whether a fresh engine replays graphs of its own, though the step that was audited has not."""
    try:
        return any(one.num_replays for one in serve(engine_of(evidence, evidence.session.backend)))
    except Exception:  # of the step, which is to be captured and not run like that
        return False


def alone(passes: Passes, kind: str) -> tuple[int, list[Finding]] | None:
    """How many requests two engines serve, one of them eagerly, and what `find` sees; the other one replays
    graphs of its own, or is captured. None: that cannot be, nothing comes of a step, other results each
    time, or both replay."""
    unseen = Pass(Recorder(passes.session), Results({}, []), {})
    same = Comparison(unseen.results, unseen.results, unseen.results, True, lambda tensor: None)
    evidence = Evidence(passes, [], unseen.trace, unseen, same)
    try:
        with passes.made.unwatched(), naming("when it was served"):
            once, again = serve(engine_of(evidence)), serve(engine_of(evidence))
            captured = engine_of(evidence, passes.session.backend)
            ours = serve(captured)
            if not any(one.num_replays for one in ours):
                with passes.made:
                    captured = engine_of(evidence, passes.session.backend, is_captured=True)
                evidence.captures += passes.captures
                ours = serve(captured)
        is_none = any(one.num_replays for one in once) or not any(one.results for one in once)
        if is_none or not all(map(are_alike, once, again)):
            return None
        found = [finding for _, finding in find(evidence, kind)]
        found += overwritten_output.in_flight(evidence, captured.overwritten)
        return sum(one.num_replays is not None for one in ours), found
    except Exception:  # of the step: the passes have said why
        return None


class _Put(Recorder):
    """Puts something into memory before one event of a step, or else behind the step."""

    def __init__(self, session: Session, at: int | None = None, put: Callable[[], None] = nothing):
        super().__init__(session)
        self.at, self.put = at, put

    def _event(self, *about: Any) -> Event:
        if len(self.trace.events) == self.at:
            with self.silent():
                self.put()
            self.put = nothing
        return super()._event(*about)

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.put()


def _is_to_work_with(
    evidence: Evidence, number: int, off: list[str], ours: list[Request], theirs: list[Request]
) -> bool:
    """Whether the step reads all that differs itself, so that something wrong there would show in the rest.
    Into an engine that runs eagerly what the captured one has written is put, as soon as all is written: a
    block that is lent in another order makes results wrong there. Partial sums may add up to the same: they
    are no result if anything else in their place makes results wrong, and nothing that comes later."""
    one, other = ours[number], theirs[number]
    session = replace(evidence.session, uncomputed={})

    def made_wrong(path: str, content: torch.Tensor, at: int | None) -> list[bool]:
        """Which requests from this one on: what holds the same in both engines, but for this memory."""
        served_by, differs = (
            engine_of(evidence),
            counted_of(other, path) & changed(content, other.results[path]),
        )
        known = {p for p, (_, begin) in other.held.items() if begin == other.held[path][1]} | {*off}

        def put_in() -> None:
            tensor = dict(served_by.held())[path]
            put([(tensor, torch.where(differs, content, clone(tensor)))])

        try:
            served = serve(served_by, number, _Put(session, at, put_in))
        except Exception:  # it was an index
            return [True]
        return [bool({*results_off(*pair)} - known) for pair in zip(served, usual, strict=False)][number:]

    def reads(path: str) -> bool:
        mine, tensor = one.held[path][0].view_as(other.before[path]), dict(engine.held())[path]
        work = [(at, e.tensors) for at, e in enumerate(events, 1) if isinstance(e, Event) and e.is_work]
        writes = [at for at, given in work for t in given if t.written and names.covers(tensor, t.address)]
        last, garbage = max(writes, default=None), torch.full_like(mine, pattern(mine.dtype, 1))
        if any(made_wrong(path, mine, last)):
            return True
        later = made_wrong(path, garbage, None)[1:]
        return bool(later) and not any(later) and made_wrong(path, garbage, last)[0]

    # What is bound anew is for somebody else.
    lie = [{r.held[path][1] for r in row if path in r.held} for row in (ours, theirs) for path in off]
    with suppress(Exception):  # of a step that cannot be watched, or what only one engine has
        engine, watched = engine_of(evidence), _Put(session)
        usual, events = serve(engine, number, watched), watched.trace.events
        return all(len(at) == 1 for at in lie) and all(map(reads, off))
    return False


def _draws_others(
    evidence: Evidence, number: int, off: list[str], ours: list[Request], theirs: list[Request]
) -> bool:
    """Whether the engines have drawn other random numbers, and all that differs hangs on them. A graph that
    draws the same ones in each replay is wrong for all that."""
    if ours[number].seeds == theirs[number].seeds:
        return False
    other = engine_of(evidence)
    for generator in other.generators():
        torch.rand(1, generator=generator, device=generator.device)
    hangs = {path for pair in zip(serve(other), theirs, strict=False) for path in results_off(*pair)}
    engine, drawn = engine_of(evidence, evidence.session.backend, bool(evidence.captures)), list[Tensors]()
    engine.skip(number)
    with suppress(Exception):  # nobody says that a step can be repeated
        for _ in range(2):
            result = compared(engine.run())
            drawn.append({path: content for path, (content, _) in engine.copies().items()} | result)
    is_same = (holds_same(drawn[0].get(path), drawn[1][path]) for path in off if len(drawn) == 2)
    return hangs.issuperset(off) and not any(is_same)


def _raised(evidence: Evidence, number: int, error: Exception, kind: str) -> Finding:
    """A replay in a row raises. What it reads there and replays write goes on from what the last has left."""
    text, node, name = f"replay {number + 1} in a row raised {error!r}", 0, evidence.passes.engine.name
    recorder = Recorder(replace(evidence.session, uncomputed={}))
    with suppress(AuditError), recorder:
        engine = engine_of(evidence, evidence.session.backend, True)
        begun = [*engine.held()]  # keeps it, so that no memory is lent anew
        engine.skip(number)
        try:
            engine.run()
        except Exception as again:
            node = launches.failed_node(again)
    if not (found := [one for one in recorder.captures if one.graph is engine.graph]):
        return Finding(kind, name, text)
    trace, marks = found[0].trace, found[0].marks
    work = [event for event in trace.own() if event.is_work]  # of what is kept here, none raises
    writers = {t.address: e for e in trace.own() for t in e.tensors if t.written and not t.is_own}
    if node:
        work = found[0].work(next(i for i, mark in enumerate(marks) if mark.node >= node))
    read = (t.address for event in work for t in event.tensors if node and t.address in writers)
    if (address := next(read, None)) is None:
        now, was = dict(engine.held()), dict(begun)
        given = ((names.at(begun, t.address), event) for event in work for t in event.tensors)
        for path, event in ((at[0], event) for at, event in given if at is not None):
            if path in now and storage_of(now[path]) != storage_of(was[path]):
                text += ": it is bound to another tensor by then"
                return Finding(moved_address.KIND, path, text, trace.place(event))
        return Finding(kind, name, text, trace.place(work[0]) if node else None)
    text += f" at {trace.place(work[0])}, which reads it: each replay goes on from what the last has left"
    named = names.at(engine.held(), address)
    return Finding(not_rearmed.KIND, named[0] if named else name, text, trace.place(writers[address]))


def _kept(evidence: Evidence, captured: Fresh, ours: list[Request], theirs: list[Request]) -> Findings:
    """What the engines hold after the first request since when that differs: a graph's memory, or names."""
    of_graph = outputs_of(filter(None, [captured.graph])).union(*(one.outputs for one in ours))
    if captured.graph is None:  # what graphs of its own return nobody is told
        with suppress(Exception), replayed() as graphs:
            captured.prepare()
            captured.run()
        of_graph |= {address for graph in graphs for node in graph.nodes for address in node.addresses}
    first, last = theirs[0].held, (_requests(theirs) or theirs)[-1].held
    idle = {at for at, (tensor, _) in first.items() if at in last and holds_same(tensor, last[at][0])}
    differ = [
        (path, one.held.get(path, (None, 0))[1] in of_graph)
        for one, other in zip(ours, theirs, strict=True)
        for path, (tensor, _) in other.held.items()
        if path not in one.held or not holds_same(one.held[path][0], tensor)
    ]
    # Of graphs of its own the memory itself differs: an engine that runs eagerly leaves that alone.
    for path, is_of_graph in sorted(differ, key=lambda one: one[1] and one[0] in idle)[:1]:
        if is_of_graph:
            place, name = _keeper(evidence, path)
            text = f"kept as {path}, in memory that the graph has written again since; copy it first"
            yield 0, Finding(overwritten_output.KIND, name, text, place)
        else:
            text = "it is read later: the step sets it in Python, and a replay sets nothing"
            at, place, target = left_behind.setter(evidence.eager, path)
            yield at, Finding(left_behind.KIND, target, text, place)


def _keeper(evidence: Evidence, path: str) -> tuple[Place | None, str]:
    """The line that lets a path lead to memory of the graph, or returns that, and what it is called there."""
    with replayed() as graphs:
        engine = engine_of(evidence, evidence.session.backend, bool(evidence.captures))
    of_graph, held = outputs_of([*graphs, *filter(None, [engine.graph])]), dict(engine.held())
    later = (re.sub(r"\[\d+\]$", f"[{i}]", path) for i in range(len(held) + 1))
    path = next((at for at in later if at not in held), path)  # the call before any request has kept some
    recorder, positions = Recorder(evidence.session), evidence.session.positions
    seen, found = [(0, "")], list[tuple[int, str]]()

    def look(position: int) -> None:
        frame = users_running(sys._getframe(1))
        inside = names.walk(dict(frame.f_locals) if frame else {}, _MOST_OF_FRAME)
        variable = next((name for name, tensor in inside if storage_of(tensor) in of_graph), None)
        held = None if found else dict(engine.held()).get(path)
        if held is not None and storage_of(held) in of_graph:
            is_inside = position in positions.chain(seen[-1][0])[1:]  # of what the line has called
            found.append(seen[-1] if is_inside else (position, variable or path))
        elif variable is not None:
            returns = (line for line in positions.statements(position) if isinstance(line, ast.Return))
            seen.append((position, next((ast.unparse(r.value) for r in returns if r.value), variable)))

    recorder.trace.lines.passed = look
    for _ in range(NUM_REQUESTS):
        with suppress(StopIteration), recorder:
            engine.prepare()
        with replayed() as graphs, nullcontext() if engine.graph else recorder:
            engine.run()
        of_graph |= outputs_of(graphs)
    if engine.finish is not None and not found:
        with recorder:
            engine.finish()
    return (positions.place(found[0][0]), found[0][1]) if found else (None, path)
