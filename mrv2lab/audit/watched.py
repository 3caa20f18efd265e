"""Fresh engines that are watched at the request at which they give different results.

Three are made: one that is captured, for what its graphs hold; one that runs eagerly, for what is right; and
one that was captured and then runs its step eagerly, for what the step finds in its inputs.
"""

import gc
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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
    lost_kernel,
    moved_address,
    names,
    overwritten_output,
    padding_leak,
    stale_input,
)
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.fresh import (
    FEW,
    Fresh,
    Tensors,
    compared,
    engine_of,
    holds_same,
)
from mrv2lab.audit.lines import same
from mrv2lab.audit.memory import clone, num_owners, put, storage_of
from mrv2lab.audit.ops import Given, Schema
from mrv2lab.audit.passes import Pass, naming
from mrv2lab.audit.recorder import Capture, Recorder, Session
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.results import Results, padding_cut
from mrv2lab.audit.trace import Event, Key, Trace
from mrv2lab.errors import AuditError
from mrv2lab.graphs import CapturedGraph

_CAUSES = (frozen_host_value, frozen_grid, lost_kernel)  # of memory, each engine has its own
_MOST_ANCHORS = 4
_NAMELESS = "a tensor of shape"


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
    written: Event | None  # the last work on it that no graph did


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


class Seen(Recorder):
    """Notes what work finds in small tensors, and what has made these, beside all else. Of a graph that is
    what its replay finds in tensors that the graph does not make."""

    def __init__(self, session: Session, graphs: "Seen | None" = None):
        super().__init__(session)
        self.inputs: dict[tuple[Key, str], _Input] = {}
        self.of_captures: dict[int, list[_Read]] = graphs.of_captures if graphs else {}
        self.known: list[Capture] = graphs.captures if graphs else []
        self.done = _Done()
        self.done_by: dict[int, _Done] = graphs.done_by if graphs else {}  # in a graph, by its capture
        self.makers: dict[int, Event] = {}
        self.written_by: dict[int, Event] = {}  # but for captured work
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
                if self.capture is None:
                    self.written_by[given.storage] = event
                self.own |= {(id(self.capture), given.storage)} if self.capture is not None else set()
        return event

    def _note(self, event: Event, given: Given, variable: str | None) -> None:
        if given.tensor.numel() > FEW:
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
        written = self.written_by.get(storage)
        self.inputs[key, label] = _Input(storage, look, held, maker, place, variable, in_graph, turn, written)

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


class Watched:
    """Engines at the request that differs, made anew and watched from a function on that all go through."""

    def __init__(self, evidence: Evidence, number: int):
        self.evidence, self.number = evidence, number
        self.backend = evidence.session.backend
        made, _ = self._captured(evidence.session)
        self.anchors = _shared(made, self._eager(evidence.session)[0].trace)
        self.session = replace(evidence.session, anchor=self.anchors[0], uncomputed={})
        self.eager: Seen | None = None
        self.ours: Tensors = {}  # what the captured engine gave
        self.is_doubtful = False
        self.as_found: set[str] = set()  # tensors that the step reads as it finds them

    def causes(self, ours: Tensors, right: Tensors) -> list[tuple[int, Finding]]:
        """What the graphs hold and an engine would not do that runs eagerly; or what the step finds."""
        self.ours = ours
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
        if all(_is_of_padding(one) for _, one in found):  # more rows than are real may be meant
            read = [*self._read(recorder, last, eager)] or [*self._freed(both, recorder, last, eager)]
            is_named = not any(one.subject.startswith(_NAMELESS) for _, one in read)
            if not found or (is_named and not self.is_doubtful):
                found = read or [*(_of_padding(last, eager) if found else ()), *found]
        for anchor in () if found else self.anchors[1:]:  # what the first one does not reach
            self.session = replace(self.session, anchor=anchor)
            others = self._both(self._eager(self.session)[0])[0]
            found = found or [one for kind in _CAUSES[:2] for one in kind.find(others)]
        found = found or [*both_arms.doubted(both)] or [*self._lost(work, recorder, last, eager)]
        return found or [*_of_padding(last, eager)]

    def _both(self, eager: Seen) -> tuple[Evidence, Seen, Seen]:
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

    def _captured(self, session: Session) -> tuple[Seen, Seen]:
        """An engine that is captured and serves up to the request; and the request itself."""
        recorder = Seen(session)
        last = Seen(session, recorder)
        with naming("when it was served"):
            with recorder:
                last.engine = engine = self._engine()
                engine.skip(self.number)
            gc.collect()  # what nobody reaches owns nothing
            with last:
                engine.run()
        recorder.captures += last.captures
        return recorder, last

    def _read(self, recorder: Seen, last: Seen, eager: Seen) -> Findings:
        """The first tensor in which a graph, or what is issued beside graphs, finds something else, and which
        makes a difference; or else, which is doubtful, the first that differs."""
        named, theirs = _named(last), _named(eager)
        held_now = {path: storage_of(tensor) for path, tensor in last.engine.held()}
        now = Seen(self.session)
        if last.engine.graph is not None:
            with naming("when it was served"), now:
                last.engine.step()
        reads = {at: read.storage for at, read in _by_place(now)}
        born = {storage for capture_ in recorder.captures for storage in capture_.born}
        made = born | {storage_of(tensor) for capture_ in recorder.captures for tensor in capture_.written}
        others, differ = dict(_by_place(eager)), list[tuple[int, Finding]]()
        self.is_doubtful = False
        for at, read in _by_place(last):
            storage, _, held, maker, place, variable, in_graph, *_ = read
            wanted = others.get(at)
            if wanted is None or holds_same(_cut(held, wanted.held), wanted.held):
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
                kind = moved_address.KIND
                text += (
                    f": the graph reads 0x{storage:x}, and run eagerly the step reads 0x{there:x} there now"
                )
                ends = (one.let_go[storage] for one in recorder.captures if storage in one.let_go)
                text += "".join(f", bound anew at {end}" for end in islice(ends, 1))
                name = named.get(there, rightly)
            else:
                kind = stale_input.KIND
                both = maker.scalars_with(wanted.maker) if maker and wanted.maker else ()
                told = (f"{at}={a!r}, and there with {b!r}" for at, a, b in both if not same(a, b))
                text += "".join(f"; {maker and maker.name} made it with {one}" for one in told)
                text += _moved_on(last, read, wanted)
            is_as_found = read.written is None and wanted.written is None
            asks = kind == stale_input.KIND and is_as_found
            subject = name or rightly or variable or f"{_NAMELESS} {[*held.shape]}"
            self.as_found |= {subject} if is_as_found else set()
            differ.append((0, Finding(kind, subject, text, place)))
            is_made = kind == stale_input.KIND and not in_graph and storage in made
            if is_made or (len(differ) > 1 and not asks):
                continue  # it is made of what differs, or may be
            if name is None or not asks or self._matters(name, rightly or name):
                yield differ[-1]
                return
        self.is_doubtful = bool(differ)
        yield from differ[:1]

    def _matters(self, name: str | None, rightly: str | None) -> bool:
        """Whether a captured engine gives something else once a tensor holds what an engine that runs eagerly
        has there. Where that cannot be tried, it may."""
        ours = {path: tensor for path, tensor in self.ours.items() if path != name}
        with suppress(Exception), self.evidence.passes.made.unwatched():
            right, mine = engine_of(self.evidence), self._engine()
            for engine in (right, mine):
                engine.skip(self.number)
            tensor, content = dict(mine.held())[name or ""], dict(right.held())[rightly or ""]
            if ours and tensor.shape == content.shape:
                put([(tensor, clone(content))])
                result = compared(mine.run())
                made = {path: now for path, (now, _) in mine.copies().items()} | result
                return not _agree(made, ours)
        return True

    def _engine(self) -> Fresh:
        return engine_of(self.evidence, self.backend, bool(self.evidence.captures))

    def _lost(self, work: list[Event], recorder: Seen, last: Seen, eager: Seen) -> Findings:
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

    def _freed(self, both: Evidence, recorder: Seen, last: Seen, eager: Seen) -> Findings:
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

    def _eager(self, session: Session, backend: str | None = None) -> tuple[Seen, Tensors]:
        """The request run eagerly; with a backend, by the step of an engine that was captured."""
        seen = Seen(session)
        with naming("when it was served"):
            with self.evidence.passes.made.unwatched():
                engine = engine_of(self.evidence, backend, backend is not None)
                engine.skip(self.number)
            seen.begun = [*engine.held()]
            with seen:
                result = engine.step() if backend else engine.run()
        seen.engine, seen.result = engine, result
        return seen, {path: content for path, (content, _) in engine.copies().items()} | compared(result)

    def _found(self, step: Seen, eager: Seen) -> Findings:
        """The first tensor in which the step finds something else, or in which only the step looks. Lines may
        differ: then what holds the same is the same, if neither has another name."""
        named, theirs = _named(step), _named(eager)
        for (key, label), (storage, _, held, maker, *_) in step.inputs.items():
            name, wanted = named.get(storage), eager.inputs.get((key, label))
            reads = eager.inputs.values() if wanted is None else [wanted]
            others = (r.held for r in reads if wanted or theirs.get(r.storage) in (None, name))
            if any(holds_same(_cut(held, other), other) for other in others):
                continue
            event = step.trace.get(key)
            assert event is not None
            at, place = step.trace.when(event), step.trace.place(event)
            if name is not None:
                text = f"{event.name} reads something else in it than is read in an engine that runs eagerly"
                self.as_found |= {name} if step.inputs[key, label].written is None else set()
                same = (r for r in reads if r is wanted or theirs.get(r.storage) == name)
                text += _not_made(eager, same, step.trace.own())
                yield at, Finding(stale_input.KIND, name, text, place)
                return
            if maker is not None and wanted is not None:
                text = f"{maker.name} is the first that gives something else than where all runs eagerly"
                name = next(_padded(step, eager, maker), maker.name)
                yield at, Finding(padding_leak.KIND, name, text, step.trace.place(maker))
                return


def _moved_on(seen: Seen, read: _Input, wanted: _Input) -> str:
    """Words for work that the step has done before on what a graph reads, and an engine that runs eagerly has
    not: a warm-up."""
    if read.written is None or wanted.written is not None:
        return ""
    at = seen.trace.place(read.written)
    return f"; {read.written.name} has written it before, in the same step: a warm-up, at {at}"


def _not_made(eager: Seen, reads: Iterable[_Input], work: Iterable[Event]) -> str:
    """Words for what has made a tensor in an engine that runs eagerly, if this work has not done that."""
    done = {(eager.session.positions.place(event.key[0]), event.name) for event in work}
    makers = (read.maker for read in reads if read.maker is not None)
    maker = next((one for one in makers if (eager.trace.place(one), one.name) not in done), None)
    return (
        f"; there {maker.name} makes it anew at {eager.trace.place(maker)}, which was not done"
        if maker
        else ""
    )


def _padded(step: Seen, eager: Seen, work: Event) -> Iterator[str]:
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


def _by_place(seen: Seen) -> Iterator[tuple[tuple[Any, ...], _Input]]:
    """What work finds, by line, op, parameter and turn: the same whoever calls. Turns are counted from the
    last one: a request that captures runs its work once more before."""
    for ((_, name, _), label), read in seen.inputs.items():
        yield (read.place, name, label, seen.done[read.place, name] - read.turn), read


def parted(mine: Seen, theirs: Seen) -> Iterator[tuple[str, str, Place | None]]:
    """Names of tensors in which the same work finds something else, with the op and its line."""
    named, others = {storage_of(tensor): path for path, tensor in theirs.begun}, dict(_by_place(theirs))
    for at, read in _by_place(mine):
        wanted = others.get(at)
        name = named.get(wanted.storage) if wanted is not None else None
        if wanted and name and not holds_same(_cut(read.held, wanted.held), wanted.held):
            yield name, at[1], read.place


def _is_of_padding(found: Finding) -> bool:
    """Whether it is a size that was larger at capture."""
    match found.change:
        case int(old), int(new):
            told = f"{found.subject} {found.evidence}"
            return (
                old > new >= 0
                and re.search(r"^(end|size|length) of | got (end|size|length)=", told) is not None
            )
    return False


def _of_padding(last: Seen, eager: Seen) -> Findings:
    """What a graph reads more of than is real, where all that is real is the same."""
    named, others = _named(last), dict(_by_place(eager))
    for at, (storage, _, held, _, place, variable, in_graph, *_) in _by_place(last):
        if in_graph and at in others and others[at].held.shape != held.shape:
            text = f"{at[1]} is given shape {[*held.shape]}, and eagerly {[*others[at].held.shape]}"
            text += "; what is real of it is the same, so what is made of the rest gets through"
            yield 0, Finding(padding_leak.KIND, named.get(storage) or variable or at[1], text, place)
            return


def _named(seen: Seen) -> dict[int, str]:
    """Where the tensors of an engine lie, with the shortest path to each."""
    return {storage_of(tensor): path for path, tensor in reversed(list(seen.engine.held()))}


def _cut(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """What of a padded tensor the reference holds too, whichever dimension is padded."""
    cut = value[tuple(map(slice, reference.shape))] if value.dim() == reference.dim() else value
    return cut if cut.shape == reference.shape else value


def _agree(some: Tensors, others: Tensors) -> bool:
    return all(path in some and holds_same(padding_cut(some[path], t), t) for path, t in others.items())


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
