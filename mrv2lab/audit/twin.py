"""Two fresh engines, one captured and one not: what leaks into both passes of an audit shows between them.

Of the first request of which they give different results three further engines are made, which are watched:
one that is captured, for what its graphs hold; one that runs eagerly, for what is right; and one that was
captured and then runs its step eagerly, for what the step finds in its inputs.
"""

import ast
import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from mrv2lab.audit import (
    both_arms,
    cross_capture,
    freed_memory,
    frozen_grid,
    frozen_host_value,
    launches,
    left_behind,
    lost_kernel,
    moved_address,
    names,
    not_rearmed,
    overwritten_output,
    padding_leak,
    stale_input,
)
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.lines import same, users_running
from mrv2lab.audit.memory import clone, num_owners, pattern, put, storage_of
from mrv2lab.audit.ops import Given, Schema
from mrv2lab.audit.passes import Pass, Passes, bytes_of, contents, is_alike, naming, nothing, replay
from mrv2lab.audit.recorder import Capture, Recorder, Session
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.results import Comparison, Results, apart, changed, is_off, padding_cut, returned, values
from mrv2lab.audit.trace import Event, Key, Trace
from mrv2lab.errors import AuditError, counted
from mrv2lab.graphs import CapturedGraph, capture
from mrv2lab.graphs.base import replayed

NUM_REQUESTS = 6
_CAUSES = (frozen_host_value, frozen_grid, lost_kernel)  # of memory, each engine has its own
_FEW = 1 << 16  # elements of an input that is compared
_MANY = 1 << 24  # of a result
_MOST_ANCHORS = 4
_MOST_OF_FRAME = 200  # objects that are looked at after each line

Tensors = dict[str, torch.Tensor]


class Fresh:
    """An engine to serve with, as `audit` is told of one: `step`, `vary` and what else `made` has. Without a
    backend it runs eagerly; with one it is captured, or replays graphs of its own."""

    whole: Set[str] = frozenset()  # large tensors that are copied; of others a hash is taken

    def __init__(self, made: Any, backend: str | None, is_captured: bool = False):
        self.made = made  # its memory lives as long as it does
        self.resets_once, self.num_prepared = False, 0
        self.hashed = set[str]()
        self.step, self.vary = made.step, made.vary
        self.reset = getattr(made, "reset", None) or nothing
        self.rows, self.finish = getattr(made, "rows", None), getattr(made, "finish", None)
        self.run = made.step if backend else getattr(made, "eager", made.step)
        self.graph: CapturedGraph | None = None
        self.reset()
        with replayed() as own:
            try:
                result = self.run()
            except Exception:
                self.vary()  # a step may need a request before it can run at all
                result = self.run()
            self.first = returned(result)  # of the call before any request
        if is_captured and not own:
            beside, self.graphs = getattr(made, "beside", ()), list[CapturedGraph]()
            for step in (*beside, made.step, *beside):
                if step is not made.step:
                    step()
                self.graphs.append(capture(step, backend=backend or "auto"))
            self.graph = self.graphs[len(beside)]
            self.run = partial(replay, self.graph)

    def prepare(self) -> None:
        """What the host does before the next request."""
        if not (self.resets_once and self.num_prepared):
            self.reset()
        self.num_prepared += 1
        self.vary()

    def undoes_vary(self) -> bool:
        """Whether its reset puts back what `vary` has changed, so that `vary` makes the same of it each time:
        with one before each, all requests would be the first."""
        states: list[dict[str, Any]] = []
        for change in (self.reset, self.vary, self.reset, self.vary):
            try:
                change()
            except StopIteration:  # there are no requests
                return False
            states.append({path: one for call in self.calls for path, one in contents(call).items()})
        fresh, varied, again, second = states
        changed = [path for path in fresh.keys() & again if not is_alike(fresh[path], varied.get(path))]
        is_same = all(is_alike(varied.get(path), second.get(path)) for path in changed)
        return is_same and any(is_alike(fresh[path], again[path]) for path in changed)

    def skip(self, number: int) -> None:
        """Serve requests until one is prepared."""
        for _ in range(number):
            self.prepare()
            self.run()
        self.prepare()

    @property
    def calls(self) -> Iterator[names.Reachable]:
        """What leads to all that it holds."""
        eager = getattr(self.made, "eager", None)
        return map(names.Reachable, filter(None, (self.step, self.vary, self.finish, eager)))

    def held(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that it holds, with its path."""
        for call in self.calls:
            yield from names.walk(call)

    def generators(self) -> list[torch.Generator]:
        """Of random numbers: its own, in order, and those of all."""
        leaves = (leaf for call in self.calls for _, leaf in names.leaves(call))
        own = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Generator)}
        return [*own.values(), torch.default_generator, *torch.cuda.default_generators]

    def copies(self) -> dict[str, tuple[torch.Tensor, int]]:
        """What it holds, and where that lies. Large tensors count where a step returns nothing."""
        most, found = _FEW if self.first else _MANY, dict[str, tuple[torch.Tensor, int]]()
        for path, tensor in self.held():
            if tensor.numel() <= _FEW or path in self.whole:
                found[path] = clone(tensor), storage_of(tensor)
            elif tensor.numel() <= most:
                found[path] = torch.tensor([hash(bytes_of(tensor))]), storage_of(tensor)
                self.hashed.add(path)
        return found


class Request(NamedTuple):
    """Results of a request, and of small tensors that the engine holds then: a copy, and where they lie."""

    results: Tensors
    held: dict[str, tuple[torch.Tensor, int]]
    num_replays: int | None = None  # None: it is what the caller makes of all results
    unseen: Sequence[str] = ()  # in what the step gave: nobody can compare that
    before: Mapping[str, torch.Tensor] = {}  # what is written held this
    beside: Mapping[str, torch.Tensor] = {}  # what is written in place where something is returned
    rows: int | None = None
    whole: Mapping[str, torch.Tensor] = {}  # what the step gave, with rows that are not real
    outputs: Set[int] = frozenset()  # where what graphs return lies
    error: Exception | None = None  # that the replay raised
    seeds: Sequence[int] = ()  # hashes of where generators are then


def find(evidence: Evidence, kind: str) -> Findings:
    """Serve requests on both. Of the first that differs: its causes, or else itself, as `kind`."""
    passes, engine = evidence.passes, evidence.passes.engine
    num_notes = len(passes.notes)
    if engine.twin is None:
        return
    with passes.made.unwatched(), naming("when it was served"):
        passes.notes += _shared_by_all(passes)
        eager_one, backend = _fresh(evidence), passes.session.backend
        theirs = _serve(eager_one)
        if any(one.num_replays for one in theirs):
            passes.notes.append(
                "both fresh engines replay graphs: give the twin an `eager` that replays none"
            )
        if evidence.captures and _replays_later(evidence):
            evidence = replace(evidence, captures=[])
        captured = _fresh(evidence, backend, bool(evidence.captures))
        ours = _serve(captured)
    passes.notes += _told(captured.first, eager_one.first, ours, theirs, captured.graph is None)
    working, returned_alone = set[str](), (ours, theirs)
    beside = _with_beside(ours, theirs), _with_beside(theirs, theirs)
    for number, (one, other), (ours, theirs) in _rounds(returned_alone, beside):
        if one.error is not None:
            yield 0, _raised(evidence, number, one.error, kind)
            return
        off = [path for path in _off(one, other) if path not in working]
        again = _serve(_fresh(evidence)) if off else []
        again = _with_beside(again, theirs) if theirs is beside[1] else again
        if off and not all(map(_alike, theirs, again)):
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
                watched = _Watched(evidence, number)
                causes, place = watched.causes(one.results, other.results), watched.maker(off[0])
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
    off = (path for path, tensor in right.items() if path in call and not _same(call[path], tensor))
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
            if storage not in one.outputs and mine is not None and not _same(mine, tensor):
                held.setdefault(path, number + 1)
        for path, tensor in other.results.items():
            mine = one.results.get(path)
            is_like = mine is not None and tensor.is_floating_point() and _same(mine, tensor)
            error = apart(mine, tensor, by_element=True) if mine is not None and is_like else 0.0
            if error > excused:
                excused, where = error, path
        rows = (path for path in other.whole if not _same(one.whole.get(path), other.whole[path]))
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
        return any(one.num_replays for one in _serve(_fresh(evidence, evidence.session.backend)))
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
            once, again = _serve(_fresh(evidence)), _serve(_fresh(evidence))
            ours = _serve(_fresh(evidence, passes.session.backend))
            if not any(one.num_replays for one in ours):
                with passes.made:
                    captured = _fresh(evidence, passes.session.backend, is_captured=True)
                evidence.captures += passes.captures
                ours = _serve(captured)
        is_none = any(one.num_replays for one in once) or not any(one.results for one in once)
        if is_none or not all(map(_alike, once, again)):
            return None
        return sum(one.num_replays is not None for one in ours), [
            finding for _, finding in find(evidence, kind)
        ]
    except Exception:  # of the step: the passes have said why
        return None


def _fresh(evidence: Evidence, backend: str | None = None, is_captured: bool = False) -> Fresh:
    passes = evidence.passes
    make: Any = passes.engine.twin
    engine = Fresh(make(), backend, is_captured)
    if passes.resets_once is None:
        passes.resets_once = engine.reset is not nothing and Fresh(make(), None).undoes_vary()
    engine.resets_once = passes.resets_once
    engine.whole = evidence.whole
    return engine


def _serve(engine: Fresh, at: int = 0, around: AbstractContextManager[Any] | None = None) -> list[Request]:
    """Requests in a row, one of them with something around it, and at last what the caller makes of all."""
    served: list[Request] = []
    for _ in range(NUM_REQUESTS):
        try:
            engine.prepare()
        except StopIteration:  # there are no more
            break
        found, lay = {}, {}
        for path, (content, storage) in engine.copies().items():
            found[path], lay[path] = content, storage
        rows = engine.rows and engine.rows()
        try:
            inside = around if around is not None and len(served) == at else nullcontext()
            with replayed() as graphs, inside:
                result = engine.run()
            whole = _compared(result)
            given = dict(names.tensors_of(result))  # of those that are no numbers rows may not be real
            made = {path: t[:rows] if path in given and t.dim() else t for path, t in whole.items()}
        except Exception as error:
            if engine.graph is None:
                raise
            return [*served, Request({}, {}, error=error)]
        held = engine.copies()
        unseen = list(_unseen(result))
        written = {p: t for p, (t, _) in held.items() if p in found and _has_changed(found[p], t)}
        before = {path: found[path] for path in written}
        outputs = {storage_of(t) for graph in graphs for _, t in names.tensors_of(graph.outputs)}
        beside = {p: t for p, t in written.items() if held[p][1] == lay[p] and lay[p] not in outputs}
        if not returned(result):  # what it has written is its result
            beside = {}
            large = (path for path, _ in engine.held() if path not in held)
            unseen += [f"{path} (of more than {_MANY} elements)" for path in large]
            made |= written
        seeds = [hash(bytes_of(generator.get_state())) for generator in engine.generators()]
        about = unseen, before, beside, rows, whole, outputs
        served.append(Request(made, held, len(graphs), *about, seeds=seeds))
    if engine.finish is not None:
        served.append(Request(_compared(engine.finish()), {}))
    return served


def _outputs(graphs: Iterable[CapturedGraph]) -> set[int]:
    """Where what graphs return lies."""
    return {storage_of(tensor) for graph in graphs for _, tensor in names.tensors_of(graph.outputs)}


def _compared(result: Any) -> Tensors:
    """Tensors and numbers in what a step gave."""
    numbers = {p: n for p, n in values(result).items() if isinstance(n, bool | int | float)}
    return returned(result) | {path: _exactly(number) for path, number in numbers.items()}


def _exactly(number: bool | int | float) -> torch.Tensor:
    """A number as a tensor that another one equals only if the numbers do, hashes of 64 bits too."""
    if isinstance(number, float) and not (number.is_integer() and abs(number) < 1 << 53):
        return torch.tensor(number, dtype=torch.float64)
    whole = int(number)
    return torch.tensor([*whole.to_bytes(whole.bit_length() // 8 + 1, "little", signed=True)])


def _unseen(result: Any) -> Iterator[str]:
    """What else is in it, but for what belongs to classes."""
    for path, value in names.leaves_of(result):
        is_seen = isinstance(value, torch.Tensor | bool | int | float | type | None)
        if not is_seen and not callable(value) and ".__" not in path:
            yield f"{path} (a {type(value).__name__})"


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
        served_by, differs = _fresh(evidence), _counted(other, path) & changed(content, other.results[path])
        known = {p for p, (_, begin) in other.held.items() if begin == other.held[path][1]} | {*off}

        def put_in() -> None:
            tensor = dict(served_by.held())[path]
            put([(tensor, torch.where(differs, content, clone(tensor)))])

        try:
            served = _serve(served_by, number, _Put(session, at, put_in))
        except Exception:  # it was an index
            return [True]
        return [bool({*_off(*pair)} - known) for pair in zip(served, usual, strict=False)][number:]

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
        engine, watched = _fresh(evidence), _Put(session)
        usual, events = _serve(engine, number, watched), watched.trace.events
        return all(len(at) == 1 for at in lie) and all(map(reads, off))
    return False


def _draws_others(
    evidence: Evidence, number: int, off: list[str], ours: list[Request], theirs: list[Request]
) -> bool:
    """Whether the engines have drawn other random numbers, and all that differs hangs on them. A graph that
    draws the same ones in each replay is wrong for all that."""
    if ours[number].seeds == theirs[number].seeds:
        return False
    other = _fresh(evidence)
    for generator in other.generators():
        torch.rand(1, generator=generator, device=generator.device)
    hangs = {path for pair in zip(_serve(other), theirs, strict=False) for path in _off(*pair)}
    engine, drawn = _fresh(evidence, evidence.session.backend, bool(evidence.captures)), list[Tensors]()
    engine.skip(number)
    with suppress(Exception):  # nobody says that a step can be repeated
        for _ in range(2):
            result = _compared(engine.run())
            drawn.append({path: content for path, (content, _) in engine.copies().items()} | result)
    is_same = (_same(drawn[0].get(path), drawn[1][path]) for path in off if len(drawn) == 2)
    return hangs.issuperset(off) and not any(is_same)


def _counted(other: Request, path: str) -> torch.Tensor:
    """Which elements of what is written count. Where only some rows are real: those, and what has changed
    behind them, unless it was cleared."""
    right, before = other.results[path], other.before[path]
    if path in other.beside:
        return changed(before, right)
    if other.rows is None or not right.dim():
        return torch.ones_like(right, dtype=torch.bool)
    counts, real = changed(before, right), slice(other.rows)
    counts[real] = False
    counts &= ~((right[counts] == 0) | (right[counts] == -1)).all()
    counts[real] = True
    return counts


def _alike(one: Request, other: Request) -> bool:
    return one.results.keys() == other.results.keys() and not any(_off(one, other))


def _off(one: Request, other: Request) -> Iterator[str]:
    """Results that one has not as the other. Of what is written only the elements count that the other one
    has changed, and the rows that are real."""
    yield from one.results.keys() - other.results.keys() - one.before.keys()  # nobody is to be given it
    for path, right in other.results.items():
        mine, before = one.results.get(path), other.before.get(path)
        if before is not None and mine is not None and mine.shape == right.shape == before.shape != ():
            counts = _counted(other, path)
            mine, right, before = mine[counts], right[counts], before[counts]
        elif before is not None and before.shape != right.shape:
            before = None
        if mine is None or mine.shape != right.shape or is_off(mine, right, before):
            yield path


def _has_changed(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.shape != after.shape or bool(changed(before, after).any())


def _raised(evidence: Evidence, number: int, error: Exception, kind: str) -> Finding:
    """A replay in a row raises. What it reads there and replays write goes on from what the last has left."""
    text, node, name = f"replay {number + 1} in a row raised {error!r}", 0, evidence.passes.engine.name
    recorder = Recorder(replace(evidence.session, uncomputed={}))
    with suppress(AuditError), recorder:
        engine = _fresh(evidence, evidence.session.backend, True)
        engine.skip(number)
        try:
            engine.run()
        except Exception as again:
            node = launches.failed_node(again)
    if not node or not (found := [one for one in recorder.captures if one.graph is engine.graph]):
        return Finding(kind, name, text)
    trace, marks = found[0].trace, found[0].marks
    work = found[0].work(next(i for i, mark in enumerate(marks) if mark.node >= node))
    writers = {t.address: e for e in trace.own() for t in e.tensors if t.written and not t.is_own}
    read = (t.address for event in work for t in event.tensors if t.address in writers)
    if (address := next(read, None)) is None:
        return Finding(kind, name, text, trace.place(work[0]))
    text += f" at {trace.place(work[0])}, which reads it: each replay goes on from what the last has left"
    named = names.at(engine.held(), address)
    return Finding(not_rearmed.KIND, named[0] if named else name, text, trace.place(writers[address]))


def _kept(evidence: Evidence, captured: Fresh, ours: list[Request], theirs: list[Request]) -> Findings:
    """What the engines hold after the first request since when that differs: a graph's memory, or names."""
    of_graph = _outputs(filter(None, [captured.graph])).union(*(one.outputs for one in ours))
    first, last = theirs[0].held, (_requests(theirs) or theirs)[-1].held
    idle = {at for at, (tensor, _) in first.items() if at in last and _same(tensor, last[at][0])}
    differ = [
        (path, one.held.get(path, (None, 0))[1] in of_graph)
        for one, other in zip(ours, theirs, strict=True)
        for path, (tensor, _) in other.held.items()
        if path not in one.held or not _same(one.held[path][0], tensor)
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
        engine = _fresh(evidence, evidence.session.backend, bool(evidence.captures))
    of_graph, held = _outputs([*graphs, *filter(None, [engine.graph])]), dict(engine.held())
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
        of_graph |= _outputs(graphs)
    if engine.finish is not None and not found:
        with recorder:
            engine.finish()
    return (positions.place(found[0][0]), found[0][1]) if found else (None, path)


class _Input(NamedTuple):
    """A small tensor that work reads: what it holds then, what has made it, and who reads it."""

    storage: int  # where its memory begins
    look: "_Look"
    held: torch.Tensor
    maker: Event | None
    place: Place | None
    variable: str | None  # that held it there
    in_graph: bool
    turn: int  # how often that line had done that work before


_Look = Callable[[], torch.Tensor]  # keeps memory, so that it is not lent anew, and does not own it
# By whom, parameter, memory, the variable that holds it, and how often its line had done that work before.
_Read = tuple[Event, str, int, _Look, str | None, int]
_Done = Counter[tuple[Place | None, str]]  # how often a line has done some work


def _looking(tensor: torch.Tensor) -> _Look:
    if tensor.layout is not torch.strided or tensor.is_complex() or tensor.is_neg():  # there more counts
        return tensor.detach
    memory, how = tensor.untyped_storage(), (tensor.storage_offset(), tensor.shape, tensor.stride())
    empty = partial(torch.empty, 0, dtype=tensor.dtype, device=tensor.device)
    return lambda: empty().set_(memory, *how)


def _updates(op: str) -> bool:
    """Whether an op works out what it writes from what was there, all of it."""
    return op.endswith("_") and not any(word in op for word in ("copy", "fill", "put", "scatter", "zero"))


class _Seen(Recorder):
    """Notes what work finds in small tensors, and what has made these, beside all else. Of a graph that is
    what its replay finds in tensors that the graph does not make."""

    def __init__(self, session: Session, graphs: "_Seen | None" = None):
        super().__init__(session)
        self.inputs: dict[tuple[Key, str], _Input] = {}
        self.of_captures: dict[int, list[_Read]] = graphs.of_captures if graphs else {}
        self.known: list[Capture] = graphs.captures if graphs else []
        self.done = _Done()
        self.done_by: dict[int, _Done] = graphs.done_by if graphs else {}  # in a graph, by its capture
        self.makers: dict[int, Event] = {}
        self.paths: dict[int, str | None] = {}  # to what captures read, from a function that ran
        self.own: set[tuple[int, int]] = set()  # memory that a capture has written, and reads as it left it
        self.num_replays = 0
        self.freed: set[tuple[CapturedGraph, int]] = set()  # what graphs read that nobody owned
        self.engine: Fresh  # which holds the tensors
        self.begun: list[tuple[str, torch.Tensor]]  # that it held before its step
        self.result: Any  # what its step has returned

    def _event(self, sort: Any, name: str, grid: Any, scalars: Any, tensors: list[Given]) -> Event:
        event = super()._event(sort, name, grid, scalars, tensors)
        done = self.done if self.capture is None else self.done_by.setdefault(id(self.capture), Counter())
        done[self.trace.place(event), name] += event.is_work
        for given in tensors if event.is_work else ():
            if not given.written or _updates(event.name):
                if self.capture is None:
                    self._note(event, given, names.local(given.storage, sys._getframe(1)))
                elif given.storage not in self.born and (id(self.capture), given.storage) not in self.own:
                    if given.storage not in self.paths:
                        frame = sys._getframe(1)
                        self.paths[given.storage] = names.in_frames(given.tensor.data_ptr(), frame)
                    self._note(event, given, self.paths[given.storage])
            if given.written:
                self.makers[given.storage] = event
                self.own |= {(id(self.capture), given.storage)} if self.capture is not None else set()
        return event

    def binds(self, path: str) -> bool:
        """Whether its step has bound a path to another tensor."""
        before, now = (dict(held).get(path) for held in (self.begun, self.engine.held()))
        return before is not None and now is not None and storage_of(before) != storage_of(now)

    def _note(self, event: Event, given: Given, variable: str | None) -> None:
        if given.tensor.numel() > _FEW:
            return
        done = self.done if self.capture is None else self.done_by[id(self.capture)]
        with self.silent():
            read = event, given.label, given.storage, _looking(given.tensor), variable
        turn = done[self.trace.place(event), event.name] - 1
        if self.capture is None:
            self._find(*read, turn)
        else:
            self.of_captures.setdefault(id(self.capture), []).append((*read, turn))

    def _find(
        self,
        event: Event,
        label: str,
        storage: int,
        look: _Look,
        variable: str | None,
        turn: int,
        in_graph: bool = False,
    ) -> None:
        with self.silent(), torch.inference_mode():
            held = clone(look())
        maker, place = self.makers.get(storage), self.trace.place(event)
        line, name, number = event.key  # a graph that is replayed again reads again
        key = line, name, number + in_graph * (self.num_replays << 32)
        turn += in_graph * self.done[place, name]
        self.inputs[key, label] = _Input(storage, look, held, maker, place, variable, in_graph, turn)

    @contextmanager
    def replaying(self, graph: CapturedGraph) -> Iterator[None]:
        """What the graph is going to read."""
        self.num_replays += 1
        for capture_ in (one for one in (*self.known, *self.captures) if one.graph is graph):
            nobodys = (at for at in capture_.called if not num_owners(capture_.kept[at]))
            self.freed |= {(graph, at) for at in nobodys}
            for read in self.of_captures.get(id(capture_), ()):
                self._find(*read, in_graph=True)
            self.done += self.done_by.get(id(capture_), Counter())
        with super().replaying(graph):
            yield

    def _after_op(
        self, event: Event, made: dict[int, torch.Tensor], tensors: list[Given], schema: Schema
    ) -> None:
        super()._after_op(event, made, tensors, schema)
        self.makers.update(dict.fromkeys(made, event))


class _Watched:
    """Engines at the request that differs, made anew and watched from a function on that all go through."""

    def __init__(self, evidence: Evidence, number: int):
        self.evidence, self.number = evidence, number
        self.backend = evidence.session.backend
        made, _ = self._captured(evidence.session)
        self.anchors = _shared(made, self._eager(evidence.session)[0].trace)
        self.session = replace(evidence.session, anchor=self.anchors[0], uncomputed={})
        self.eager: _Seen | None = None

    def causes(self, ours: Tensors, right: Tensors) -> list[tuple[int, Finding]]:
        """What the graphs hold and an engine would not do that runs eagerly; or what the step finds."""
        try:
            eager, made = self._eager(self.session)
            self.eager = eager
        except AuditError:  # it cannot run like that at all
            return []
        if not _agree(made, right):
            return []
        if self.evidence.captures and not self.evidence.eager.replayed():
            step, made = self._eager(self.session, self.backend)
            if _agree(made, ours):  # the graph does what the step does: they differ in what they find
                return list(self._found(step, eager))
        work = [event for event in eager.trace.own() if event.is_work and event.tensors]
        both, recorder, last = self._both(eager)
        found = [found for kind in _CAUSES for found in kind.find(both)]
        found = found or [*self._read(recorder, last, eager)] or [*self._freed(both, recorder, last, eager)]
        for anchor in () if found else self.anchors[1:]:  # what the first one does not reach
            self.session = replace(self.session, anchor=anchor)
            others = self._both(self._eager(self.session)[0])[0]
            found = found or [one for kind in _CAUSES[:2] for one in kind.find(others)]
        found = found or [*both_arms.doubted(both)] or [*self._lost(work, recorder, last, eager)]
        return found or [*_of_padding(last, eager)]

    def _both(self, eager: _Seen) -> tuple[Evidence, _Seen, _Seen]:
        """An engine that is captured beside one that runs eagerly, from the anchor on."""
        recorder, last = self._captured(self.session)
        captures = [replace(one, trace=one.trace.anchored()) for one in recorder.captures]
        eager_pass = Pass(eager, Results({}, []), {})
        eager.trace = eager.trace.anchored()
        both = replace(self.evidence, captures=captures, run=last.trace, eager_pass=eager_pass, of_two=True)
        return both, recorder, last

    def maker(self, path: str) -> Place | None:
        """The line of an engine that runs eagerly which has made a result, or returned it."""
        if (eager := self.eager) is None:
            return None
        held = dict(names.tensors_of(eager.result)) | dict(eager.engine.held())
        event = eager.makers.get(storage_of(held[path])) if path in held else None
        if event is None and path not in dict(names.tensors_of(eager.result)):
            return None  # no work makes a number
        positions = self.session.positions
        return eager.trace.place(event) if event else positions.place(eager.trace.returned_at())

    def _captured(self, session: Session) -> tuple[_Seen, _Seen]:
        """An engine that is captured and serves up to the request; and the request itself."""
        recorder = _Seen(session)
        last = _Seen(session, recorder)
        with naming("when it was served"):
            with recorder:
                last.engine = engine = _fresh(self.evidence, self.backend, bool(self.evidence.captures))
                engine.skip(self.number)
            gc.collect()  # what nobody reaches owns nothing
            with last:
                engine.run()
        recorder.captures += last.captures
        return recorder, last

    def _read(self, recorder: _Seen, last: _Seen, eager: _Seen) -> Findings:
        """The first tensor in which a graph, or what is issued beside graphs, finds something else."""
        named, theirs = _named(last), _named(eager)
        held_now = {path: storage_of(tensor) for path, tensor in last.engine.held()}
        now = _Seen(self.session)
        if last.engine.graph is not None:
            with naming("when it was served"), now:
                last.engine.step()
        reads = {at: read.storage for at, read in _by_place(now)}
        born = {storage for capture_ in recorder.captures for storage in capture_.born}
        others = dict(_by_place(eager))
        for at, (storage, _, held, maker, place, variable, in_graph, _) in _by_place(last):
            wanted = others.get(at)
            if wanted is None or _same(_cut(held, wanted.held), wanted.held):
                continue
            name, rightly = named.get(storage), theirs.get(wanted.storage)
            text = f"{at[1]} reads something else there than in an engine that runs eagerly"
            if storage in born and in_graph:
                kind, text = cross_capture.KIND, text + ": memory of another capture, which graphs write"
            elif storage in born:
                kind, text = overwritten_output.KIND, text + ": a graph has written that memory again since"
            elif at not in reads and name is not None and rightly is not None and name != rightly:
                kind, text = stale_input.KIND, text + f", which reads {rightly}"
            elif (there := reads.get(at, held_now.get(rightly or "", storage))) != storage:
                kind, text = moved_address.KIND, text + f": it is not at 0x{storage:x} any more"
                ends = (one.let_go[storage] for one in recorder.captures if storage in one.let_go)
                text += "".join(f", bound anew at {end}" for end in islice(ends, 1))
                name = named.get(there, rightly)
            else:
                kind = stale_input.KIND
                both = maker.scalars_with(wanted.maker) if maker and wanted.maker else ()
                told = (f"{at}={a!r}, and there with {b!r}" for at, a, b in both if not same(a, b))
                text += "".join(f"; {maker and maker.name} made it with {one}" for one in told)
            name = name or rightly or variable or f"a tensor of shape {[*held.shape]}"
            yield 0, Finding(kind, name, text, place)
            return

    def _lost(self, work: list[Event], recorder: _Seen, last: _Seen, eager: _Seen) -> Findings:
        """The first work that only an engine that runs eagerly does, if graphs hold other lines of that."""
        replays, place = last.trace.replayed(), eager.trace.place
        traces = [last.trace, *(one.trace for one in recorder.captures if one.graph in replays)]
        done = [(place(event), event.name) for one in traces for event in one.own() if event.is_work]
        lost = Counter(event.name for event in work) - Counter(name for _, name in done)
        lines = [(place(event), event.name) for event in work]
        first = (line for line in lines if lost[line[1]] and line not in done and {*lines} & {*done})
        for where, name in islice(first, 1):
            text = f"{lost[name]} more where all runs eagerly than in the graphs and beside them"
            yield 0, Finding(lost_kernel.KIND, name, text, where)

    def _freed(self, both: Evidence, recorder: _Seen, last: _Seen, eager: _Seen) -> Findings:
        """Memory that a graph reads and nobody owned when it was replayed: what was there has been put
        elsewhere, or is gone. Watching has kept it, so it need not hold anything else here."""
        held, now = [*eager.engine.held(), *eager.begun], dict(last.engine.held())
        for capture_, memory in both.read_by_graphs():
            begin, trace = memory.data_ptr(), capture_.trace
            lies = range(begin, begin + memory.nbytes())
            reads = ((e, t.label) for e in trace.own() if e.is_work for t in e.tensors if t.address in lies)
            if (capture_.graph, begin) not in last.freed or (read := next(reads, None)) is None:
                continue
            wanted = eager.trace.get(read[0].key)
            address = next((t.address for t in wanted.tensors if t.label == read[1]), 0) if wanted else 0
            name, _ = names.at(held, address) or ("", None)
            kind, text = moved_address.KIND, freed_memory.told(capture_, begin)
            if name in now and storage_of(now[name]) != begin:
                text += f". {name} is at 0x{now[name].data_ptr():x} now"
            else:
                kind, name = freed_memory.KIND, recorder.paths.get(begin) or name or "a tensor"
            yield 0, Finding(kind, name, text, trace.place(read[0]))

    def _eager(self, session: Session, backend: str | None = None) -> tuple[_Seen, Tensors]:
        """The request run eagerly; with a backend, by the step of an engine that was captured."""
        seen = _Seen(session)
        with naming("when it was served"):
            with self.evidence.passes.made.unwatched():
                engine = _fresh(self.evidence, backend, backend is not None)
                engine.skip(self.number)
            seen.begun = [*engine.held()]
            with seen:
                result = engine.step() if backend else engine.run()
        seen.engine, seen.result = engine, result
        return seen, {path: content for path, (content, _) in engine.copies().items()} | _compared(result)

    def _found(self, step: _Seen, eager: _Seen) -> Findings:
        """The first tensor in which the step finds something else, or in which only the step looks. Lines may
        differ: then what holds the same is the same, if neither has another name."""
        named, theirs = _named(step), _named(eager)
        for (key, label), (storage, _, held, maker, *_) in step.inputs.items():
            name, wanted = named.get(storage), eager.inputs.get((key, label))
            reads = eager.inputs.values() if wanted is None else [wanted]
            others = (r.held for r in reads if wanted or theirs.get(r.storage) in (None, name))
            if any(_same(_cut(held, other), other) for other in others):
                continue
            event = step.trace.get(key)
            assert event is not None
            at, place = step.trace.when(event), step.trace.place(event)
            if name is not None:
                text = f"{event.name} reads something else in it than is read in an engine that runs eagerly"
                if eager.binds(name):
                    at, line, target = left_behind.setter(eager.trace, name)
                    text += "; the step binds it to another tensor, and a replay binds nothing"
                    yield at, Finding(moved_address.KIND, target, text, line or place)
                    return
                same = (r for r in reads if r is wanted or theirs.get(r.storage) == name)
                text += _not_made(eager, same, step.trace.own())
                yield at, Finding(stale_input.KIND, name, text, place)
                return
            if maker is not None and wanted is not None:
                text = f"{maker.name} is the first that gives something else than where all runs eagerly"
                name = next(_padded(step, eager, maker), maker.name)
                yield at, Finding(padding_leak.KIND, name, text, step.trace.place(maker))
                return


def _not_made(eager: _Seen, reads: Iterable[_Input], work: Iterable[Event]) -> str:
    """Words for what has made a tensor in an engine that runs eagerly, if this work has not done that."""
    done = {(eager.session.positions.place(event.key[0]), event.name) for event in work}
    makers = (read.maker for read in reads if read.maker is not None)
    maker = next((one for one in makers if (eager.trace.place(one), one.name) not in done), None)
    return (
        f"; there {maker.name} makes it anew at {eager.trace.place(maker)}, which was not done"
        if maker
        else ""
    )


def _padded(step: _Seen, eager: _Seen, work: Event) -> Iterator[str]:
    """What an engine holds of which work comes, and has more rows of than one that runs eagerly: in order of
    reading."""
    named, sources = _named(step), [work]
    for source in sources:
        makers = (read.maker for (key, _), read in step.inputs.items() if key == source.key)
        sources += [maker for maker in makers if maker is not None and maker not in sources]
    keys = {source.key for source in sources}
    for at, (storage, _, held, maker, *_) in step.inputs.items():
        wanted = eager.inputs.get(at)
        is_padded = wanted is not None and wanted.held.shape != held.shape
        if at[0] in keys and maker is None and is_padded and storage in named:
            yield named[storage]


def _by_place(seen: _Seen) -> Iterator[tuple[tuple[Any, ...], _Input]]:
    """What work finds, by line, op, parameter and turn: the same whoever calls. Turns are counted from the
    last one: a request that captures runs its work once more before."""
    for ((_, name, _), label), read in seen.inputs.items():
        yield (read.place, name, label, seen.done[read.place, name] - read.turn), read


def _of_padding(last: _Seen, eager: _Seen) -> Findings:
    """What a graph reads more of than is real, where all that is real is the same."""
    named, others = _named(last), dict(_by_place(eager))
    for at, (storage, _, held, _, place, variable, in_graph, _) in _by_place(last):
        if in_graph and at in others and others[at].held.shape != held.shape:
            text = f"{at[1]} is given shape {[*held.shape]}, and eagerly {[*others[at].held.shape]}"
            text += "; what is real of it is the same, so what is made of the rest gets through"
            yield 0, Finding(padding_leak.KIND, named.get(storage) or variable or at[1], text, place)
            return


def _named(seen: _Seen) -> dict[int, str]:
    """Where the tensors of an engine lie, with the shortest path to each."""
    return {storage_of(tensor): path for path, tensor in reversed(list(seen.engine.held()))}


def _cut(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """What of a padded tensor the reference holds too, whichever dimension is padded."""
    cut = value[tuple(map(slice, reference.shape))] if value.dim() == reference.dim() else value
    return cut if cut.shape == reference.shape else value


def _agree(some: Tensors, others: Tensors) -> bool:
    return all(path in some and _same(padding_cut(some[path], t), t) for path, t in others.items())


def _shared(captured: Recorder, eager: Trace) -> list[Any]:
    """The functions in which eager work goes the way of captured work, from there to its line, as anchors:
    first where most does, and of several the outermost. Who calls it may go other ways: a wrapper runs one
    and replays the other. Of one that is called twice the calls could not be told apart."""
    positions = captured.session.positions

    def way(event: Event) -> tuple[tuple[Any, int], ...]:
        places = ((at, positions.place(at)) for at in positions.chain(event.key[0]))
        return tuple((positions.code(at), place.line if place else 0) for at, place in places)

    ways = {way(event) for capture_ in captured.captures for event in capture_.trace.own()}
    known = {one[: 1 + i] for one in ways for i in range(len(one))}
    codes = {code for one in ways for code, _ in one}
    work = [event for event in eager.own() if event.is_work]
    calls = {positions.call(at) for event in work for at in positions.chain(event.key[0])}
    num_calls = Counter(code for _, code, _ in calls)
    same, other_lines = Counter[Any](), list[Any]()
    for one in map(way, work):
        length = sum(one[: 1 + i] in known for i in range(len(one)))
        same.update([code for code, _ in reversed(one[:length]) if num_calls[code] == 1])
        other_lines += (code for code, _ in reversed(one) if code in codes)
    shared = sorted(same, key=lambda code: -same[code])[:_MOST_ANCHORS] or other_lines[:1]
    return [SimpleNamespace(__code__=code) for code in shared] or [None]


def _same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    return a is not None and a.shape == b.shape and not is_off(a, b)
