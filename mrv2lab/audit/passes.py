"""The passes of an audit over one engine: which there are, and what each leaves behind.

    reset(); step()            warm-up, as an engine does it
    capture(step)              at once: what the warm-up has used up is used up
    vary()                     the inputs of another step
    reset(); graph.replay()    what an engine would do with them ...
    reset(); step()            ... and what would be right, twice, to see whether the step can be repeated
    vary(); step(); replay     a few requests more, until the two differ

`reset` is called before each pass and never between warm-up and capture. One that undoes what `vary` has
changed, as it makes a fresh engine of all, is followed by `vary` each time. After every pass what it wrote
is put back, so in the end all buffers hold what they held after `vary`. A kind of finding that wants to
know more asks for further passes, which are made with `run`, `eager` and `in_a_row`.
"""

import gc
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from types import BuiltinFunctionType, MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from mrv2lab.audit import names
from mrv2lab.audit.atoms import Described
from mrv2lab.audit.glance import Glance
from mrv2lab.audit.lines import MAX_LINES, Anchor, KnownLines, same, users_frame
from mrv2lab.audit.memory import (
    RowsOfAll,
    Saved,
    Shadow,
    as_bytes,
    clone,
    has_memory,
    key_of,
    num_owners,
    pattern,
    put,
    shadows_of,
    storage_of,
    strides,
    unseen_writes,
    writable,
)
from mrv2lab.audit.order import Order
from mrv2lab.audit.recorder import Capture, Recorder, Session
from mrv2lab.audit.report import NO_SIGN, Place
from mrv2lab.audit.results import Results, Written, closed, lost, mark, returned, values
from mrv2lab.audit.trace import Key, Trace
from mrv2lab.audit.writers import UnwrittenIndex
from mrv2lab.errors import AuditError, BadInput, CaptureError, HostSyncError, Mrv2labError
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.border import Border

NUM_REQUESTS = 6  # that are compared at most
NONE: Set[int] = frozenset()  # no allocation gets another pattern
SETTING = "torch's "  # begins the path of a switch of torch's
_FEW = 1 << 16  # elements of an input
T = TypeVar("T")
Drawn = list[tuple[Callable[[Any], Any], Any]]  # ways to put a state of random numbers back, and the state
Left = Callable[[], dict[str, torch.Tensor]]  # what a step has left in attributes, by path


def nothing() -> None:
    """What an engine does that needs not do it."""


def replay(graph: CapturedGraph) -> Any:
    """What a graph returns, as of a replay made now."""
    graph.replay()
    return graph.outputs


@dataclass(frozen=True)
class Engine:
    """Somebody else's way to capture and replay a step."""

    name: str  # of the step, for the report
    # warm-up and capture. Every capture made in it is recorded, through whatever class.
    capture: Callable[[], Any]
    run: Callable[[], Any]  # the step as the engine runs it, with replays
    eager: Callable[[], Any]  # the same step without a graph, on the same buffers
    vary: Callable[[], Any] = nothing  # changes the inputs in place, as the next step would
    # what captured and eager pass both go through, a function or several. Lines are compared from there on.
    anchor: Anchor = None
    replays: bool = True  # whether `run` should replay a graph
    roots: names.Named = field(default_factory=dict)  # objects by name, from which tensors are named
    fresh: Callable[[], Any] = nothing  # state of a fresh step, made before each pass and not looked at
    # captures the eager step at the inputs of now, to see the kernels that ops in C++ launch
    afresh: Callable[[], CapturedGraph] | None = None
    # what else the engine captures, by name, before the step and behind it
    beside: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    in_flight: int = 0  # how many steps later a result is still read
    inputs: Sequence[torch.Tensor] = ()  # static inputs that `vary` is to refresh for every step
    reads: Callable[[], Any] | None = None  # what is read of Python's objects after a step: numbers and texts
    # of the result how many rows are real, now; None where nobody says so
    num_rows: Callable[[], int] | None = None
    twin: Callable[[], Any] | None = None  # makes a fresh engine, see `fresh.Fresh`
    begun: Mapping[str, Any] = field(default_factory=dict)  # what it held before its audit, see `contents`
    # `eager` is what was captured, so both are to return the same kind of thing and to write the same memory.
    # An engine pads its batches, and its graphs write rows that nobody reads.
    is_one: bool = False
    is_padded: bool = False  # of memory of which it returns a part, the rest is padding
    in_parts: bool = True  # whether part of a graph can be replayed alone: not where others wait in the rest


class Pass(NamedTuple):
    """A pass that was watched: what it did, and what came of it."""

    watched: Recorder
    results: Results
    left: dict[str, Any]  # numbers and texts in Python's own objects, by path
    raised: AuditError | None = None  # by what it replayed
    # as `left`, when the step began, where there is a reset before it
    began: Mapping[str, Any] = MappingProxyType({})

    @property
    def trace(self) -> Trace:
        return self.watched.trace


class Table(NamedTuple):
    """A tensor of integers that held addresses at capture; for each entry what that led to, or None."""

    path: str
    tensor: torch.Tensor
    targets: list[str | None]


class Beside(NamedTuple):
    """Eager passes around the captures that the engine makes beside the step, at the same inputs."""

    alone: Pass  # before any of them
    again: Pass  # and so is this
    after: list[Pass]  # behind those before the step, and behind all
    written: list[Written]  # what those behind the step have written


class Passes:
    """The passes over one engine. See the module."""

    def __init__(self, session: Session, engine: Engine):
        session.order = Order() if engine.is_one else None
        self.session, self.engine, self.made = session, engine, Recorder(session, order=session.order)
        self.beside: Beside | None = None
        self.refreshed: dict[int, Shadow] = {}
        self.rows_written = RowsOfAll()
        self.plain_at_capture: dict[str, Any] = {}  # numbers and texts of Python's objects, by path
        self.num_rows: int | None = None
        self.row_counts: set[int] = set()  # of what the step returns, with those that are not real
        self.uneven: set[int] = set()  # of tensors that one step has returned, where they have not as many
        self.notes: list[str] = []
        self.changed: dict[str, Any] | None = None  # what `vary` has changed, by path, with what it is now
        self.was: dict[str, Any] = {}  # the same paths, as far as there was something
        self.by_reset: set[range] = set()  # memory that captures use and a reset has let go of
        self.read_by_vary: set[int] = set()  # where tensors lie that ops in it have read
        self.is_rewound = False  # a reset undoes what `vary` has changed
        self.num_varied = 0
        self._later: list[Saved] = []  # what inputs held before they were varied once more
        self.resets_once: bool | None = None  # of fresh engines, once it is known
        self._drawn: Drawn = []
        # what Python and NumPy draw next: as a request's first pass begins, and behind an eager one
        self._drawn_by_python, self._drawn_behind = Drawn(), Drawn()
        self.drawn_for_twins: Drawn = []
        self.drawn_by_request: list[list[Any]] = []  # of twins, see `Fresh.prepare`

    @property
    def captures(self) -> list[Capture]:
        return self.made.captures

    def capture(self) -> None:
        """The engine's own warm-up and captures, and what it captures beside them, before and behind."""
        engine = self.engine
        if engine.beside:
            with self.made.unwatched():
                self._afresh("before anything was captured", engine.eager)
            alone, again = self.eager(), self.eager()
            self._capture_beside()
            after = [self.eager()]
        with naming("while it was captured"), self.made:
            engine.capture()
        self._settle()
        if engine.beside:
            written = self._capture_beside()
            after.append(self.eager())
            put((tensor, now) for tensor, _, now in written)
            self.beside = Beside(alone, again, after, written)
        self._left = self._left_in_attributes(self.captures[-1].born if self.captures else {})
        self.session.uncomputed.clear()  # what comes next is not watched, and memory is lent anew
        for capture in self.captures:
            capture.owned = {at for at in capture.called if num_owners(capture.kept[at])}
        self.at_capture = names.spans(engine.roots)
        self.begin = {path: tensor.data_ptr() for path, tensor in names.walk(engine.roots)}
        self.strides = {path: strides(tensor) for path, tensor in names.walk(engine.roots)}
        self.tables, self.plain_at_capture = list(self._tables()), self.plain()

    def _settle(self) -> None:
        """A replay at the inputs of the capture, as engines make one: what the step has bound leads to what a
        graph has made, and `vary` may read it. What was there before is put back."""
        graph = self.captures[-1].graph if self.captures else None
        if graph is None or not self.engine.is_one or self.made.trace.replayed():
            return
        with Saved(self.captures[-1].written), suppress(Exception):
            graph.replay()  # one that raises will do so again, where it is looked at

    def _tables(self) -> Iterator[Table]:
        """Tables of addresses that the captures read. A replay follows what they hold."""
        read = {storage for capture in self.captures for storage in capture.kept}
        spans = self.at_capture.values()
        begin, end = min((s.start for s in spans), default=0), max((s.stop for s in spans), default=0)
        for path, tensor in names.walk(self.engine.roots):
            if tensor.dtype is torch.int64 and storage_of(tensor) in read:
                held = clone(tensor).flatten()
                if bool(((held >= begin) & (held < end)).any()):  # mostly not, and to look takes long
                    targets = [names.into(self.at_capture, address) for address in held.tolist()]
                    yield from [Table(path, tensor, targets)] if any(targets) else ()

    def _capture_beside(self) -> list[Written]:
        """Everything beside the step, as the engine captures it. What that has written is put back."""
        recorder = Recorder(self.session)
        with naming("while what is beside it was captured"), recorder:
            for capture in self.engine.beside.values():
                capture()
        written = _written(recorder.saved)
        recorder.saved.restore()
        return written

    def vary(self) -> None:
        """The inputs of the next step. Where it is asked what has been refreshed, that is watched."""
        engine = self.engine
        watched: AbstractContextManager[object] = self._border()
        unseen: AbstractContextManager[object] = nullcontext()
        if engine.num_rows is not None or engine.inputs:
            # No name of ours may hold one: where it ends, `vary` has bound another.
            self.refreshed |= shadows_of((*self.views(), *(one for one in engine.inputs if not one.dim())))
            unseen = unseen_writes(self.refreshed, self.static())
            watched = Recorder(self.session, earlier=self.refreshed, any_write=True, order=self.session.order)
        elif self._is_ordered() or self.num_varied:
            watched = Recorder(self.session, order=self.session.order)
        if self.num_varied and isinstance(watched, Recorder):
            self._later.append(watched.saved)
        before = self._held() if engine.is_one else {}
        outer = self._of_vary()
        draw_again(self._drawn_behind)
        self._drawn_by_python, self._drawn_behind = [], []
        self._drawn = self._drawn or drawn_next(engine.vary, engine.fresh)
        entered = list[Any]()
        with naming("when the inputs were varied"), unseen, watched:  # what we read, `vary` does not
            depth = torch._C._len_torch_function_stack()
            engine.vary()
            while torch._C._len_torch_function_stack() > depth:  # modes that are to stay: ours lies below
                entered.append(torch._C._pop_torch_function_stack())
        for mode in reversed(entered):
            torch._C._push_on_torch_function_stack(mode)
        self.num_varied += 1
        if isinstance(watched, Recorder):
            read = (tensor for event in watched.trace.own() for tensor in event.tensors)
            self.read_by_vary |= {t.address for t in read if not (t.written or t.is_own)}
        if engine.is_one and engine.vary is not nothing:
            self._see_changes(before, left_out := list[str]())
            self.notes += [f"too many objects: {path} and what comes next is not seen" for path in left_out]
            if engine.fresh is not nothing and self.num_varied == 1:
                self._see_reset(before, outer)
        self.num_rows = engine.num_rows and engine.num_rows()
        if self.num_rows is not None:
            self._see_rows(self.num_rows)

    def _see_rows(self, rows: int) -> None:
        for tensor in self.views():
            shadow = self.refreshed.get(storage_of(tensor))  # None: `vary` has bound it
            if shadow is not None and (written := shadow.view(tensor)) is not None:
                self.rows_written.note(tensor, written, rows)

    def _see_changes(self, before: dict[str, Any], left_out: list[str] | None = None) -> None:
        now = self._held(left_out=left_out)
        paths = [path for path in now | before if not same(before.get(path), now.get(path))]
        self.changed = {path: now[path] if path in now else _unset(now, path) for path in paths}
        was = {path: before[path] if path in before else _unset(before, path) for path in paths}
        bound = BuiltinFunctionType  # to what would live as long as this
        self.was = {
            path: Described(one.__name__) if isinstance(one, bound) else one for path, one in was.items()
        }

    def _of_vary(self) -> dict[str, Any]:
        """What it can reach, before it has been called behind a reset for the first time."""
        is_asked = self.engine.is_one and self.engine.fresh is not nothing and not self.num_varied
        return contents(names.Reachable(self.engine.vary)) if is_asked else {}

    def _see_reset(self, before: dict[str, Any], outer: dict[str, Any]) -> None:
        """Whether a reset undoes what `vary` has changed: a replay would find the inputs of the capture, or
        `vary` would begin again. If it makes the same inputs each time it is called behind a reset, that is
        done from now on."""
        paths = list(self.changed or ())
        varied, counted = self._held(paths), contents(names.Reachable(self.engine.vary))
        self._fresh()
        now, undone_now = self._held(paths), contents(names.Reachable(self.engine.vary))
        lost = [path for path in paths if not is_alike(varied.get(path), now.get(path))]
        undone = [path for path in lost if is_alike(before.get(path), now.get(path))]
        moved = [path for path in outer | counted if not is_alike(outer.get(path), counted.get(path))]
        begun_again = [path for path in moved if is_alike(outer.get(path), undone_now.get(path))]
        if not undone and not begun_again:
            return
        # A method that has been patched, say, which no walk from the step shows.
        undone += [path for path in begun_again if path.endswith("()") and path not in undone]
        if path := next(self._rebound(varied, now), None):
            told = f"reset() binds {path} to another tensor, and the graph reads the one that it was"
            raise AuditError(f"{told}; let it restore what is there, in place")
        self.is_rewound, made = True, []
        for _ in range(2):
            self._fresh()
            made.append(self._held(paths))
        others = [path for path in paths if not is_alike(made[0].get(path), made[1].get(path))]
        others = [path for path in others if self._is_read(path, varied.get(path))]
        self.is_rewound = not others and self._makes_the_same()
        if undone and not self.is_rewound:
            others = others or ["input behind another step"]
            named = ([path for path in some if not is_nameless(path)] or some for some in (undone, others))
            told, other = (", ".join(some[:3]) for some in named)
            text = f"reset() undoes what vary() has changed ({told}), {NO_SIGN}"
            self.notes.append(f"{text}; behind it vary() makes another {other} each time")
        self._see_changes(before)

    def _makes_the_same(self) -> bool:
        """Whether requests behind a reset find the same, also where an eager pass lies between: `vary` may
        read what the step has bound, which no reset puts back. As many are tried as there are."""
        for number in (NUM_REQUESTS, NUM_REQUESTS // 2, 2):
            self.num_varied, made = number, list[dict[str, Any]]()
            try:
                for _ in range(2):
                    self._fresh()
                    made.append(self._held())
                    self.eager()
            except AuditError:  # inputs have run out
                continue
            finally:
                self.num_varied = 1
                self._fresh()
            read = [path for path in made[0] if is_nameless(path)]
            return all(is_alike(made[0][path], made[1].get(path)) for path in read)
        return True

    def _rebound(self, before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
        """Paths to tensors that captures read, and that lie elsewhere now."""
        kept = [range(at, at + one.kept[at].nbytes()) for one in self.captures for at in one.kept]
        for path, begin in self.begin.items():
            then, later = before.get(path), now.get(path)
            if isinstance(then, tuple) and isinstance(later, tuple) and then[0] == begin != later[0]:
                yield from (path for memory in kept if begin in memory)

    def _is_read(self, path: str, value: Any) -> bool:
        """Whether a step may read what is reached by a path: a tensor, or what one of its lines names."""
        traces = [trace for one in self.captures for trace in (one.warm_up, one.trace)]
        atoms = (atom for trace in traces for at in trace.values for atom in self.session.positions.atoms(at))
        return isinstance(value, tuple) or is_nameless(path) or any(atom.leads_to(path) for atom in atoms)

    def _border(self) -> AbstractContextManager[object]:
        return Border(is_open=True) if self.session.backend == "emulated" else nullcontext()

    def _is_ordered(self) -> bool:
        """Whether there are streams, or host memory that is copied beside the host's work."""
        session, known = self.session, dict(self.engine.roots) | names.roots(self.engine.vary)
        if session.order is None or session.order.is_used:
            return session.order is not None
        return any(
            isinstance(value, torch.cuda.Stream | torch.cuda.Event)
            or (type(value) is torch.Tensor and not session.on_device(value) and session.is_shared(value))
            for _, value in names.leaves(known)
        )

    def _held(self, wholly: Collection[str] = (), left_out: list[str] | None = None) -> dict[str, Any]:
        """What can be reached from the step, and what captures have read."""
        held: dict[str, Any] = {}
        for memory in (kept for capture in self.captures for kept in capture.kept.values()):
            if memory.nbytes() <= _FEW:  # it may be reached through a call alone
                whole = torch.empty(0, dtype=torch.uint8, device=memory.device)
                held[f"0x{memory.data_ptr():x}"] = bytes_of(whole.set_(memory))
        return held | settings() | contents(self.engine.roots, left_out, wholly)

    def nobodys(self) -> set[int]:
        """Memory that graphs read, that somebody owned when they were captured, and nobody does now."""
        return {at for one in self.captures for at in one.owned if not num_owners(one.kept[at])}

    def end(self) -> None:
        """Let buffers hold what they held when inputs had been varied once."""
        for saved in reversed(self._later):
            saved.restore()
        if self.is_rewound and self._later:
            self.num_varied = 1
            self._fresh()
        self._later.clear()

    def vary_again(self) -> bool:
        """A step more, to see what is done for it before the last one has ended. False: there is none."""
        recorder = Recorder(self.session, order=self.session.order)
        with recorder.saved, suppress(Exception):  # inputs may have run out
            with recorder:
                self.engine.vary()
            self.run(in_order=True)
            return True
        return False

    def static(self) -> list[torch.Tensor]:
        """Tensors on the device that can be reached from the step, one for each memory."""
        found = {storage_of(tensor): tensor for _, tensor in names.walk(self.engine.roots)}
        return [t for t in found.values() if t.dim() and t.numel() and self.session.on_device(t)]

    def views(self) -> list[torch.Tensor]:
        """The same, all ways to look at it: inputs may lie side by side in one memory."""
        found = {key_of(tensor): tensor for _, tensor in names.walk(self.engine.roots)}
        return [t for t in found.values() if t.dim() and t.numel() and self.session.on_device(t)]

    def overwritten(self, step: Callable[[], Any], num_steps: int, written: list[Written]) -> dict[str, int]:
        """Parts of a step's result that later steps write, and where they lie: they lose the pattern they
        were given. What the step has written is put back.

        Asked of steps at the same inputs; what is lost there, of steps as an engine serves them too. Results
        may take turns that `vary` moves on, or that a reset begins anew.
        """
        again = partial(self._afresh, "when it was repeated", step)

        def in_turn() -> None:
            recorder = Recorder(self.session)
            inputs.enter_context(recorder.saved)
            with recorder:
                self.engine.vary()
            step()

        def lost_by(later: Callable[[], object]) -> dict[str, int]:
            found = dict[str, int]()
            for which in range(2):
                held = dict(names.tensors_of(again()))
                with Saved(held.values()):
                    mark(held.values(), which)
                    for _ in range(num_steps):
                        later()
                    found |= {path: held[path].data_ptr() for path in lost(held, which)}
            return found

        with Saved(one.tensor for one in written), self.made.unwatched(), ExitStack() as inputs:
            found = lost_by(again)
            with suppress(Exception):  # inputs may have run out, or a step cannot go on
                kept = lost_by(in_turn) if found else found
                found = {path: address for path, address in found.items() if path in kept}
            return found

    def capture_afresh(self) -> CapturedGraph | None:
        """The step captured at the inputs of now, where the engine can do that."""
        if (afresh := self.engine.afresh) is None:
            return None
        gc.collect()  # a pass that raised may have left nodes of autograd, which wait for another stream
        return self._afresh("when it was captured again", afresh)

    def run(
        self,
        second: Set[int] = NONE,
        before: Callable[[], None] = nothing,
        writes: Iterable[torch.Tensor] = (),
        in_order: bool = False,
    ) -> Pass:
        """The engine's step; all is put back afterwards, also what `before` it writes to `writes`. Cells in
        `second` hold the second pattern. What is done `in_order` follows what was done so before; one that
        raises gives no results."""
        self._fresh()
        began = self._began()
        own = (tensor for capture in self.captures for tensor in capture.written)
        saved = Saved([*own, *(w.tensor for w in (self.beside.written if self.beside else ()))])
        filled = Saved(writes)  # by the audit: that is no result of the step's
        before()
        self._draw_as_first()
        recorder = Recorder(self.session, order=self.session.order if in_order else None)
        made = partial(self._made, recorder, self.engine.run, "when it was replayed", lambda: self._left)
        with self._poison_kept(second), filled, saved, recorder.saved:
            self.session.cells.set(second, 1)
            try:
                return made(saved)._replace(began=began)
            except AuditError as error:
                # On a GPU it mostly ends the process. What the emulator refuses is no fault of the step's.
                if (
                    self.session.backend == "cuda"
                    or isinstance(error.__cause__, Mrv2labError)
                    or not in_order
                ):
                    raise
                return Pass(recorder, Results({}, []), self.plain(), error)
            finally:
                self.session.cells.set(second, 0)

    def eager(
        self,
        poisoned: Set[int] | None = NONE,
        which: int = 1,
        against: Iterable[Trace] = (),
        passed: Callable[[Recorder, int], None] | None = None,
        nudged: Set[torch.dtype] = frozenset(),
        by_some: bool = False,
        held: Mapping[Key, Mapping[str, Any]] = MappingProxyType({}),
        bound: Mapping[str, Any] = MappingProxyType({}),
        most_lines: int = MAX_LINES,
    ) -> Pass:
        """The step without a graph. Allocations in `poisoned` (None: all) hold pattern `which`.

        `passed` is told of each position that the pass leaves. What small inputs and ops
        hold of the types `nudged` is moved by one ulp, or `by_some`. Ops of `held` get other numbers, and
        what `vary` has changed is `bound` to other values, by path, and stays so.
        """
        self._fresh()
        began = self._began()
        kept_so_far = ((tensor, shadow) for tensor, shadow in self.kept() if not shadow.written.all())
        earlier = {storage_of(tensor): deepcopy(shadow) for tensor, shadow in kept_so_far}
        recorder = Recorder(self.session, list(against), poisoned, which, earlier=earlier, nudged=nudged)
        recorder.by_some, recorder.are_checked, recorder.held = by_some, self._may_run_out, held
        recorder.trace.lines.most = most_lines
        if passed is not None:
            recorder.trace.lines.passed = partial(passed, recorder)
        kept = self._poison_kept(poisoned or NONE, which)
        small = [t for t in writable(self.static()) if t.numel() <= _FEW] if nudged else []
        # What its own graphs write no op tells. They are those that were replayed when it was made ready.
        own = self.captures if self.engine.is_one and self.made.trace.replayed() else ()
        written = Saved(tensor for one in own for tensor in one.written)
        with self._hosts(), Saved(small) as inputs, kept, written, recorder.saved:
            with torch.inference_mode():
                for tensor, _ in inputs.items():
                    recorder.nudge(tensor)
            left = partial(self._left_in_attributes, recorder.born)
            self._bind(bound)
            self._draw_as_first()
            made = self._made(recorder, self.engine.eager, "when it was run eagerly", left, written)
        self._drawn_behind = drawn_by_python()
        return made._replace(began=began)

    def _bind(self, values: Mapping[str, Any]) -> None:
        """Let paths lead to these values. AuditError: one does not, as of two variables with one name."""
        for path, value in values.items():
            if (bind := self.binder(path)) is not None:
                bind(value)
        now = names.plain(self.engine.roots) if values else {}
        if not all(same(now.get(path), value) for path, value in values.items()):
            raise AuditError(f"{', '.join(values)}: not all could be bound")

    def binder(self, path: str) -> Callable[[Any], object] | None:
        """See `names.binder`."""
        return names.binder(self.engine.roots, path)

    @property
    def draws_on(self) -> bool:
        """Whether the step can reach an iterator: what it draws from that is gone."""
        return any(issubclass(type(one), Iterator) for _, one in names.leaves(self.engine.roots))

    @property
    def _may_run_out(self) -> bool:
        """Whether this is one more request than its program may have been made for: a cache ends somewhere.
        On a GPU an index that leads out of it ends the process."""
        return self.session.backend == "cuda" and self.num_varied > 1

    def glance(self, known: Set[int]) -> tuple[Results, KnownLines]:
        """What the step gives without a graph, if nobody watches how; and where it goes through other lines
        than those that are known."""
        self._fresh()
        lines = KnownLines(self.session.positions, self.session.anchor, known)
        glance = Glance(self.session, lines, self._may_run_out)
        self._draw_as_first()
        with self._hosts(), glance.saved, naming("when it was run eagerly"):
            with glance.over(self.made):
                result = self.engine.eager()
            self._land()
            left = {path: clone(t) for path, t in self._left_in_attributes(glance.born).items()}
            again = dict[str, str]()
            made, written = self._real(returned(result, again)), _written(glance.saved)
            self._drawn_behind = drawn_by_python()
            return Results(made, written, values(result), left, closed(result), again), lines

    def _draw_as_first(self) -> None:
        """Let Python and NumPy draw in each pass of a request what they have drawn in its first one."""
        self._drawn_by_python = self._drawn_by_python or drawn_by_python()
        draw_again(self._drawn_by_python)

    def _hosts(self) -> Saved:
        """Memory of the host's that graphs read: what Python writes there no op tells."""
        memory = (kept for one in self.captures for kept in one.kept.values() if kept.nbytes() <= _FEW)
        wholes = (torch.empty(0, dtype=torch.uint8, device=one.device).set_(one) for one in memory)
        return Saved(whole for whole in wholes if not self.session.on_device(whole))

    def _made(
        self, recorder: Recorder, step: Callable[[], Any], when: str, left: Left, *saved: Saved
    ) -> Pass:
        """Watch a step. Where an engine returns something, what it has `left` in attributes is padding."""
        with naming(when):
            with recorder:
                result = step()
            self._land()
            again = dict[str, str]()
            made = self._real(returned(result, again))
            is_result = self.engine.is_one or not made  # to look for it takes as long as a pass
            copies = {path: clone(t) for path, t in left().items()} if is_result else {}
        written = _written(*saved, recorder.saved)
        results = Results(made, written, values(result), copies, closed(result), again)
        if self.engine.is_padded:
            results.lie_in |= {storage_of(tensor) for _, tensor in names.tensors_of(result)}
        return Pass(recorder, results, self.plain())

    def _real(self, made: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of what a step returned the rows that are real."""
        counts = {len(t) for t in made.values() if t.dim()}
        self.row_counts |= counts
        if self.num_rows is not None and len(counts - {1}) > 1 and max(counts) > self.num_rows:
            self.uneven |= counts
        return {path: t[: self.num_rows] if t.dim() else t for path, t in made.items()}

    def _land(self) -> None:
        """Wait for what a step has issued on whatever stream. That nobody waits is a finding of its own."""
        if self.session.backend == "cuda":
            torch.cuda.synchronize()

    def in_a_row(
        self,
        step: Callable[[], Any],
        num_steps: int,
        tensors: Iterable[torch.Tensor],
        between: Callable[[], None] = nothing,
    ) -> list[Results]:
        """What steps give that follow each other; `tensors` are put back once the last is over, or raises.
        Only synchronisations are watched. `between` is done before each step."""
        results = []
        with Saved(tensors) as saved:
            for number in range(num_steps):
                between()
                if number and self.is_rewound:  # nobody makes a fresh engine between two steps
                    self._vary_unwatched()
                else:
                    self._fresh()
                try:
                    with self.made.unwatched():
                        result = step()
                except Exception:  # a step may be one that cannot go on, like a position that has run out
                    break
                self._land()
                results.append(Results(self._real(returned(result)), _written(saved), values(result)))
        return results

    def kept(self) -> Iterator[tuple[torch.Tensor, Shadow]]:
        """What eager passes before the first replay allocated with `empty` and kept."""
        for reference, shadow in self.made.handed_out:
            if (tensor := reference()) is not None:
                yield tensor, shadow

    def num_own(self, memory: torch.UntypedStorage) -> int:
        """How many tensors the audit itself holds there: of what somebody has written."""
        return [*map(storage_of, self.session.views.values())].count(memory.data_ptr())

    def is_scratch(self, tensor: torch.Tensor, eager: Trace) -> bool:
        """Whether memory that only graphs write is nobody's any more, or read by them alone: a library's."""
        memory = tensor.untyped_storage()
        if num_owners(memory) <= self.num_own(memory):
            return True

        def reads(trace: Trace) -> bool:
            read = (t.address - memory.data_ptr() for e in trace.own() for t in e.tensors if not t.written)
            return any(0 <= offset < memory.nbytes() for offset in read)

        return not reads(eager) and any(reads(capture.trace) for capture in self.captures)

    def _fresh(self) -> None:
        gc.collect(1)  # of what the last pass has left what is in cycles; nobody else collects
        order = self.made.ordering  # all else that is done in a reset counts for nothing
        known = self._let_go()
        draw_again(self._drawn if self.is_rewound else ())
        with naming("when it was reset"), order.waits(), order.ties():
            self.engine.fresh()
        self.by_reset |= self._let_go() - known
        if self.is_rewound:
            for number in range(self.num_varied):
                if number:  # what steps of the requests before have left
                    with self.made.unwatched():
                        self.engine.run()
                self._vary_unwatched()

    def _vary_unwatched(self) -> None:
        order = self.made.ordering
        with naming("when the inputs were varied again"), order.waits(), order.ties(), self._border():
            self.engine.vary()

    def _let_go(self) -> set[range]:
        return {range(at, at + one.kept[at].nbytes()) for one in self.captures for at in one.let_go}

    def _afresh(self, when: str, step: Callable[[], T]) -> T:
        self._fresh()
        with naming(when):
            return step()

    def _began(self) -> dict[str, Any]:
        return self.plain() if self.engine.fresh is not nothing else {}

    def plain(self) -> dict[str, Any]:
        """Numbers and texts that the step has left: those that are read, or else all that are found."""
        if self.engine.reads is not None:
            return names.plain({names.READ: self.engine.reads()})
        return names.plain(self.engine.roots) if self.engine.is_one else {}

    def _left_in_attributes(self, born: Mapping[int, None]) -> dict[str, torch.Tensor]:
        found = {path: t for path, t in names.walk(self.engine.roots) if storage_of(t) in born}
        called = names.by_birth([(path, storage_of(t)) for path, t in found.items()], born)
        return {called[path]: tensor for path, tensor in found.items()}

    def _poison_kept(self, second: Set[int], which: int = 1) -> Saved:
        """Give kept memory another pattern where its shadow says that nobody wrote; returns the way back."""
        saved = Saved()
        for tensor, shadow in self.kept():
            if -1 - shadow.allocation.cell in second and not shadow.written.all():
                saved.save(tensor)
                mask = torch.from_numpy(~shadow.view(tensor)).to(tensor.device)
                with torch.inference_mode():
                    held = pattern(tensor.dtype, which, is_checked=self.session.is_checked)
                    tensor.masked_fill_(mask, held)
        return saved


def contents(
    named: names.Named, left_out: list[str] | None = None, wholly: Collection[str] = ()
) -> dict[str, Any]:
    """What can be reached by path: plain values, what functions run, where tensors are, and what small ones
    hold or how often torch has written large ones; of those of some paths what they hold."""
    held: dict[str, Any] = {}
    for path, value in names.leaves(named, left_out=left_out, code=True):
        if issubclass(type(value), torch.Tensor):
            with suppress(Exception):  # of a fake one
                if not has_memory(value):
                    continue
                is_small = value.numel() <= _FEW or path in wholly
                held[path] = value.data_ptr(), bytes_of(value) if is_small else value._version
        elif isinstance(value, np.ndarray):
            held[path] = value.tobytes()
        else:
            held[path] = frozenset(value) if isinstance(value, set) else value
    return held


def settings() -> dict[str, Any]:
    """What torch's own switches are set to, of those that its ops ask for."""
    found: dict[str, Any] = {
        SETTING + "default dtype": torch.get_default_dtype(),
        SETTING + "float32_matmul_precision": torch.get_float32_matmul_precision(),
        SETTING + "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        SETTING + "grad mode": torch.is_grad_enabled(),
        SETTING + "inference mode": torch.is_inference_mode_enabled(),
        SETTING + "function modes": ", ".join(type(mode).__name__ for mode in function_modes()),
    }
    for device in ("cpu", "cuda"):
        found[f"{SETTING}autocast on {device}"] = torch.is_autocast_enabled(device)
        found[f"{SETTING}autocast dtype on {device}"] = torch.get_autocast_dtype(device)
    return found


def function_modes() -> list[Any]:
    """Those that stand around what is called now, the outermost first."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def is_nameless(path: str) -> bool:
    return path.startswith("0x")


def _unset(held: Mapping[str, Any], path: str) -> Described | None:
    """Words for a part of an object that is not there: of an attribute, its class may have one."""
    name = path.removesuffix("()")
    is_part = "." in name or "[" in name
    return Described("not set") if is_part and not {name, f"{name}()"} & held.keys() else None


def is_alike(before: Any, now: Any) -> bool:
    """Whether two things that were held are the same, wherever tensors lie. Of a large one only how often it
    was written is known from before: then nobody can tell, and it may be."""
    if not (isinstance(before, tuple) and isinstance(now, tuple)):
        return same(before, now)
    return type(before[1]) is not type(now[1]) or bool(before[1] == now[1])


def drawn_next(*callers: Callable[[], Any]) -> Drawn:
    """How to put back what torch, numpy and Python draw next, for all and from generators of these."""
    states: Drawn = [(torch.set_rng_state, torch.get_rng_state()), *drawn_by_python()]
    if torch.cuda.is_initialized():
        states.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    own = {id(leaf): leaf for call in callers for _, leaf in names.leaves(names.Reachable(call))}
    for leaf in own.values():
        match leaf:
            case torch.Generator():
                states.append((leaf.set_state, leaf.get_state()))
            case random.Random():
                states.append((leaf.setstate, leaf.getstate()))
            case np.random.RandomState():
                states.append((leaf.set_state, leaf.get_state()))
            case np.random.Generator():
                bits: Any = leaf.bit_generator
                states.append((partial(setattr, bits, "state"), deepcopy(bits.state)))
    return states


def drawn_by_python() -> Drawn:
    """How to put back what numpy and Python draw next."""
    return [(np.random.set_state, np.random.get_state()), (random.setstate, random.getstate())]


def draw_again(drawn: Iterable[tuple[Callable[[Any], Any], Any]]) -> None:
    """Put back what is drawn next, as `drawn_next` has found it."""
    for put_back, state in drawn:
        put_back(state)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return as_bytes(clone(tensor)).numpy().tobytes()


def _written(*saved: Saved) -> list[Written]:
    """What was saved before a pass wrote it, with what it holds now."""
    return [Written(tensor, before, clone(tensor)) for part in saved for tensor, before in part.items()]


@contextmanager
def naming(when: str) -> Iterator[None]:
    """Turn whatever a step raises into an AuditError that names the line."""
    try:
        yield
    except (BadInput, HostSyncError, AuditError, UnwrittenIndex, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() too: what a step raises ends its audit, not the process
        at = at_line(error) or at_line(error.__cause__)
        message = str(error).splitlines()[0] if str(error) else ""
        if "dummy base class" in message:  # it was bound before `graphs.owned` had a model of it
            message += ": import mrv2lab.audit before whatever imports it by name"
        message += on_a_cpu(message)
        if isinstance(error, CaptureError):
            raise AuditError(f"the step cannot be captured{at}: {message}") from error
        raise AuditError(f"the step raised {type(error).__name__} {when}{at}: {message}") from error


def on_a_cpu(message: str) -> str:
    """Advice, where torch says that there is no GPU."""
    if not any(words in message for words in ("not compiled with CUDA enabled", "Found no NVIDIA driver")):
        return ""
    return '. Here is no GPU: capture is emulated, so let tensors lie on device="cpu"'


def at_line(error: BaseException | None) -> str:
    """Words for the innermost line of the user's that an exception passed through."""
    if (at := users_frame(error)) is None:
        return ""
    place = Place(at.tb_frame.f_code.co_filename, at.tb_lineno, at.tb_frame.f_code.co_name)
    return f" at {place}: {place.source}"
