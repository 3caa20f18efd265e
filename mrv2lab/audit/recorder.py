"""Watches one pass: every op, every Triton launch, every line, and the captures and replays made in it.

with Recorder(session) as pass_:
    step()                     # or somebody else's capture, or somebody else's replay
pass_.trace                    # what Python issued, in order, and which graphs were replayed
pass_.captures                 # what was recorded in each capture, and the graph it became
"""

import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import psutil
import torch
from torch._library.triton import set_wrap_triton_enabled
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from triton import JITFunction
from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.audit import kernel_source, names
from mrv2lab.audit.atoms import cpu_is_host, forget_sources
from mrv2lab.audit.launches import last_node
from mrv2lab.audit.lines import Anchor, Lines, Positions, untraced, users_running
from mrv2lab.audit.memory import Allocation, Cells, Saved, Seen, Shadow, clone, pattern, storage_of, strides
from mrv2lab.audit.ops import (
    Given,
    Ops,
    Schema,
    arguments_of,
    beyond,
    draws,
    few_values,
    holding,
    schema_of,
    sort_argument,
)
from mrv2lab.audit.order import HostReads, Order, Ordering, patched
from mrv2lab.audit.report import Place
from mrv2lab.audit.results import nudge
from mrv2lab.audit.trace import Event, Key, Made, TensorArgument, Trace
from mrv2lab.audit.writers import Writers
from mrv2lab.errors import AuditError
from mrv2lab.graphs import CapturedGraph, device_of, streams
from mrv2lab.graphs.base import CaptureObserver, Node, no_garbage_collection, observed
from mrv2lab.graphs.border import Border
from mrv2lab.graphs.memory import is_host, is_marked, is_pinned
from mrv2lab.graphs.nested import tensors_in
from mrv2lab.graphs.python_ops import modes_as_found, opened, seen_inside
from mrv2lab.graphs.work import is_splitting

FILLS = {"aten.zeros", "aten.ones", "aten.full", "aten.zeros_like", "aten.ones_like", "aten.full_like"}
_FEW = 1 << 16  # elements

MAX_EVENTS = 2_000_000  # pieces of work that one pass may issue


class Mark(NamedTuple):
    """A line that has issued work of a graph."""

    position: int
    node: int  # the last one by its end, as `launches.last_node` says
    num_events: int  # of the capture by then


@dataclass
class Capture:
    """One capture: its trace, the graph it became, what it handed out and wrote, and whose memory it read."""

    trace: Trace
    warm_up: Trace  # the pass that ran before it
    begun: int  # how many events had been issued outside of captures when it began
    graph: CapturedGraph | None = None
    allocations: list[Allocation] = field(default_factory=list)
    written: list[torch.Tensor] = field(default_factory=list)
    born: dict[int, None] = field(default_factory=dict)
    kept: dict[int, torch.UntypedStorage] = field(default_factory=dict)
    called: dict[int, str | None] = field(default_factory=dict)  # of what of it is the device's: a variable
    owned: set[int] = field(default_factory=set)  # what of that somebody owned behind the capture, in torch
    order: Order = field(default_factory=Order)  # of its work, on the streams that were tied to it
    let_go: dict[int, Place] = field(default_factory=dict)  # and where a tensor on it ended last
    marks: list[Mark] = field(default_factory=list)  # in order
    _watched: list[Seen] = field(default_factory=list)

    def mark(self, position: int) -> None:
        """A position is left: what has been captured since the last one was is its work."""
        if (node := last_node()) and (not self.marks or self.marks[-1].node != node):
            self.marks.append(Mark(position, node, len(self.trace.events)))

    def work(self, number: int) -> list[Event]:
        """What the line of one of its marks has issued on the device."""
        begin = self.marks[number - 1].num_events if number else 0
        events = self.trace.events[begin : self.marks[number].num_events]
        return [event for event in events if isinstance(event, Event) and event.is_work]

    def keep(self, given: Given, is_device: bool) -> None:
        """A graph does not keep what it reads alive. What is lent anew would be replayed as an index."""
        storage = given.storage
        self.kept[storage] = given.tensor.untyped_storage()

        def end(_: Any) -> None:
            if (at := users_running(sys._getframe())) is not None:
                self.let_go[storage] = Place(at.f_code.co_filename, at.f_lineno, at.f_code.co_name)

        if is_device:
            self.called[storage] = names.local(storage, sys._getframe(3))
            self._watched.append(Seen(given.tensor, end))


@dataclass
class Session:
    """What the passes of one audit share."""

    backend: str
    anchor: Anchor = None
    positions: Positions = field(default_factory=Positions)
    uncomputed: dict[int, Capture] = field(default_factory=dict)  # memory of captures, until their replay
    opaque: dict[str, None] = field(default_factory=dict)  # ops that nobody can look into, in order
    views: WeakValueDictionary[int, torch.Tensor] = field(default_factory=WeakValueDictionary)  # see `_save`
    order: Order | None = None  # of what is issued outside of captures, where that is asked
    graphs: WeakKeyDictionary[CapturedGraph, Order] = field(default_factory=WeakKeyDictionary)

    def __post_init__(self) -> None:
        forget_sources()
        self.device = device_of(self.backend)
        self.cells = Cells(self.device)

    @property
    def stream(self) -> int:
        """The one that is current."""
        if self.backend == "cuda":  # asked for each op, and torch makes an object for it
            return int(torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice()))
        return streams.current_stream().cuda_stream

    @property
    def is_captured(self) -> bool:
        """Whether what is issued on it belongs to the capture under way."""
        on_gpu = self.backend == "cuda"
        return bool(torch._C._cuda_isCurrentStreamCapturing() if on_gpu else streams.is_captured())

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether work beside the host's touches this memory: the device's own, or pinned."""
        return self.on_device(tensor) or is_pinned(tensor) or (self.backend == "cuda" and tensor.is_pinned())

    @property
    def is_checked(self) -> bool:
        """Whether an index out of range is an exception and no more."""
        return self.backend == "emulated" and not self.opaque

    def nodes(self, graph: CapturedGraph) -> list[Node]:
        """The nodes of a graph without those that the audit adds."""
        return [node for node in graph.nodes if not any(map(self.cells.holds, node.addresses))]

    def on_device(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in device memory, or plays it."""
        return tensor.is_cuda if self.backend == "cuda" else not is_marked(tensor)


_entered: list["Recorder"] = []


def entered() -> "Recorder | None":
    """The recorder that watches now; audits do not nest."""
    return _entered[-1] if _entered else None


@dataclass(eq=False, repr=False)
class Recorder(CaptureObserver):
    """Records a pass while it is entered. See the module."""

    session: Session  # what it shares with the other passes
    # the captures that the pass will be compared with: where a tensor lies elsewhere than it did there, its
    # name is looked up while it can be
    against: Sequence[Trace] = ()
    # which `empty`s of the pass get another pattern than the first, by turn; None for all
    poisoned: Set[int] | None = frozenset()
    which: int = 1  # number of that pattern
    earlier: dict[int, Shadow] = field(default_factory=dict)  # as in `Writers`, and so is the next one
    any_write: bool = False
    nudged: Set[torch.dtype] = frozenset()  # what work makes of these is moved by an ulp, as rounding may do
    by_some: bool = False  # or by some
    moved: set[torch.dtype] = field(default_factory=set)  # those of them that it has made
    order: Order | None = None  # of what is issued outside of captures, where that is asked

    def __post_init__(self) -> None:
        self.ordering = Ordering(self)
        self.writers = Writers(self.session.uncomputed, self.earlier, self.any_write)
        lines = Lines(self.session.positions, self.session.anchor)
        self.are_checked = False  # whether indices are looked at before they are used
        self.has_looked_inside = False  # of ops that Python implements
        self.held: Mapping[Key, Mapping[str, Any]] = {}  # host values that ops get instead of their own
        self.trace = Trace(lines, lines.values)  # what Python issues; of a capture under way, in it
        self.captures: list[Capture] = []  # those that have ended
        # what `empty` handed out, captures left out, with who has written it
        self.handed_out: list[tuple[Seen, Shadow]] = []
        self._filled: list[tuple[Seen, torch.Tensor, int]] = []
        self.saved = Saved()  # tensors that were there before and have been written
        self.mode: Ops | None = None
        self.quiet = False
        self.capture: Capture | None = None
        self.in_capture = False
        # what goes on around the capture under way: the mode, where that lay in torch's stack, and the rest
        self._outer: list[tuple[Ops | None, int | None, Trace, dict[int, None]]] = []
        self.from_python: set[int] = set()  # where data of Python's lies that plays device memory
        self.born: dict[int, None] = {}  # where memory begins that it, or the capture under way, has made
        self._num_events = self._num_work = 0
        self._memory = psutil.Process()

    def filled(self) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Small integer tensors that the pass has filled when it made them, and that somebody keeps. With
        each comes what it was filled with, and the position of the line that made it."""
        held = [(reference(), content, position) for reference, content, position in self._filled]
        return [(tensor, content, at) for tensor, content, at in held if tensor is not None]

    # ---- entering and leaving ----

    def __enter__(self) -> "Recorder":
        _entered.append(self)
        self._most_bytes = self._memory.memory_info().rss + psutil.virtual_memory().available // 2
        with ExitStack() as stack:
            stack.enter_context(modes_as_found())
            stack.enter_context(set_wrap_triton_enabled(False))  # else no mode gets such a launch
            stack.enter_context(no_garbage_collection())  # a trace is millions of objects and no cycle
            stack.enter_context(patched(launches(), self._launching))
            stack.enter_context(self.ordering.waits())
            if self.order is not None:
                self.order.call += 1
                stack.enter_context(self.ordering.ties())
                stack.enter_context(HostReads(self.ordering.host_reads))
            stack.enter_context(observed(self))
            stack.enter_context(cpu_is_host(self.session.backend == "cuda"))
            if self.session.backend == "emulated":
                stack.enter_context(seen_inside(Border(is_open=True)))
            self.mode = stack.enter_context(Ops(self, in_capture=False))
            stack.enter_context(self.trace.lines)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        _entered.remove(self)
        self._stack.close()

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """A pass of which nothing is noted goes on in here."""
        on_border = seen_inside(Border(is_open=True)) if self.session.backend == "emulated" else nullcontext()
        with modes_as_found(), self.ordering.waits(), on_border:
            yield

    @contextmanager
    def silent(self) -> Iterator[None]:
        """What is issued in here is the audit's or a graph's: it is not told of."""
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def begin(self) -> None:
        """A capture begins: from here to `end` a trace of its own is written."""
        if self.quiet:
            return
        if self.order is not None:  # the host waits for all that goes on before it captures
            self.order.synchronize()
            self.order.call += 1
        self._outer.append((self.mode, _take_out(self.mode), self.trace, self.born))
        self.capture = Capture(Trace(self.trace.lines), self.trace.last_pass(), len(self.trace.events))
        self.in_capture = True
        self.trace, self.born = self.capture.trace, self.capture.born
        self.trace.lines.values = self.trace.values
        self.trace.lines.passed = self.capture.mark
        self.mode = Ops(self, in_capture=True)
        self.mode.__enter__()

    def end(self) -> None:
        """The capture ends: its trace is complete."""
        if self.quiet or self.capture is None:
            return
        assert self.mode is not None
        self.mode.__exit__(None, None, None)
        self.capture.mark(self.trace.lines.current)
        self.trace.lines.passed = None
        self.captures.append(self.capture)
        self.capture, self.in_capture = None, False
        self.mode, depth, self.trace, self.born = self._outer.pop()
        _put_in(self.mode, depth)
        self.trace.lines.values = self.trace.values

    def captured(self, graph: CapturedGraph) -> None:
        """Pair the graph with the trace that was written last."""
        if not self.quiet and self.captures and self.captures[-1].graph is None:
            capture = self.captures[-1]
            capture.graph = graph
            self.session.graphs[graph] = capture.order
            self.session.uncomputed.update(dict.fromkeys(capture.born, capture))
            self.writers.forget(capture.born)

    # ---- ops ----

    def on_op(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record an op, let it happen, and note what it made."""
        schema = schema_of(func)
        name = schema.name
        scalars, tensors = arguments_of(schema, args, kwargs)
        on_device = any(self.session.on_device(given.tensor) for given in tensors)
        if (tensors or schema.is_hosts) and not on_device:  # the host's own business
            if schema.sort == "op":
                self.ordering.host_touches(name, tensors)
            result = func(*args, **kwargs)
            if schema.sort == "op":  # a copy on the device may lie where something else has lain
                leaves = [result] if isinstance(result, torch.Tensor) else tensors_in(result)
                self._bear(storage_of(leaf) for leaf in leaves if self.session.on_device(leaf))
            return result
        if name == "aten.lift_fresh":
            scalars.append(("data", few_values(tensors[0].tensor)))
            self._bear([tensors[0].storage])
            self.from_python.add(tensors[0].storage)
        event, tensors = self._call(schema.sort, name, scalars, tensors)
        if schema.is_random and draws(scalars):
            self.trace.random.append(event)
            if not self.in_capture:
                self.trace.drawn_from.append(_drawn_from(args, kwargs, tensors))
        if schema.is_opaque:
            self.session.opaque[name] = None
            if self.capture is None:
                self._refuse_uncomputed(event, tensors)
        if schema.sort == "op":
            self._before_work(event, tensors, schema.indexes, schema)
        if event.key in self.held:
            args, kwargs = holding(schema, args, kwargs, self.held[event.key])
        result = func(*args, **kwargs)
        if schema.sort != "view":
            leaves = [result] if isinstance(result, torch.Tensor) else tensors_in(result)
            made = {storage_of(tensor): tensor for tensor in leaves}
            self._after_op(event, made, tensors, schema)
            if event.is_work:
                self.ordering.op(event, schema, scalars, tensors, made)
        return result

    def _call(self, sort: Any, name: str, scalars: Any, tensors: list[Given]) -> tuple[Event, list[Given]]:
        """The event of an op; the host's zero-dimensional tensors are passed by value."""
        is_number = [not (g.tensor.dim() or g.written or self.session.on_device(g.tensor)) for g in tensors]
        for given in compress(tensors, is_number):
            scalars.append((given.label, few_values(given.tensor)))
        tensors = list(compress(tensors, map(not_, is_number)))
        return self._event(sort, name, None, scalars, tensors), tensors

    def on_python_op(self, mode: Ops, func: Any, args: Any, kwargs: Any) -> Any:
        """Look into an op that Python implements. On a GPU it may do what torch knows nothing of as well."""
        self.has_looked_inside, schema, trace = True, schema_of(func), self.trace
        scalars, tensors = arguments_of(schema, args, kwargs)
        is_seen = any(self.session.on_device(given.tensor) for given in tensors)
        may_hide = is_seen and self.session.backend == "cuda"
        if is_seen:
            _, tensors = self._call("view", schema.name, scalars, tensors)
        for given in tensors if may_hide else ():
            if given.written and self.session.on_device(given.tensor):
                self.writers.compute(given.storage)
                self._save(given)
        at, work, tracer = len(trace.events) - 1, self._num_work, sys.gettrace()
        trace.lines.go_on()
        try:
            result = opened(mode, func, args, kwargs)
        finally:
            sys.settrace(tracer)
        if may_hide and self._num_work == work:
            trace.amend(at, "op")
        return result

    def _after_op(
        self, event: Event, made: dict[int, torch.Tensor], tensors: list[Given], schema: Schema
    ) -> None:
        passed = {given.storage for given in tensors}
        new = {storage: tensor for storage, tensor in made.items() if storage not in passed}
        self._bear(new)
        self.trace.made[event.key] = [
            Made(Seen(t), t.data_ptr(), t.shape, t.stride())
            for t in new.values()
            if t.numel() and t.layout is torch.strided and self.session.on_device(t)
        ]
        if self.nudged and event.computes:
            self._nudge(new.values(), tensors, event)
        if event.name in FILLS and not self.in_capture:
            small = (t for t in new.values() if not t.is_floating_point() and t.numel() <= _FEW)
            self._filled += [(Seen(tensor), clone(tensor), event.key[0]) for tensor in small]
        if event.sort == "alloc":
            for tensor in new.values():
                self._hand_out(event, tensor)
        elif schema.keeps_garbage:
            self.writers.carry(made, tensors, self.in_capture)

    def _bear(self, storages: Iterable[int]) -> None:
        for storage in storages:
            self.born.pop(storage, None)  # lent anew
            self.born[storage] = None
            self.writers.lend(storage)
            self.session.uncomputed.pop(storage, None)
            self.from_python.discard(storage)
            if (order := self.ordering.now) is not None:
                order.forget(storage)

    def _hand_out(self, event: Event, tensor: torch.Tensor) -> None:
        """Fill what an `empty` returned with its pattern, and watch who writes it."""
        if not tensor.numel() or not self.session.on_device(tensor) or tensor.is_sparse:
            return
        turn = self.session.cells.taken if self.in_capture else len(self.handed_out)
        shadow = Shadow(tensor, event.key[0], turn)
        self.writers.lend(storage_of(tensor), shadow)
        with torch._C.DisableTorchFunction():
            if self.capture is not None:
                self.session.cells.fill(tensor)
                self.capture.allocations.append(shadow.allocation)
            else:
                which = self.which if self.poisoned is None or turn in self.poisoned else 0
                tensor.fill_(pattern(tensor.dtype, which, is_checked=self.session.is_checked))
                self.handed_out.append((Seen(tensor), shadow))

    # ---- launches and waits ----

    def _launching(self, original: Any) -> Any:
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if self.quiet or kwargs.get("warmup") or kwargs.get("benchmark_run"):
                return original(kernel, *args, **kwargs)
            tensors = self._on_launch(kernel, args, **kwargs)
            self.quiet = self.trace.lines.paused = True
            try:
                result = original(kernel, *args, **kwargs)
                if self.nudged:
                    self._nudge((), tensors, None)
                return result
            finally:
                self.quiet = self.trace.lines.paused = False

        return run

    def _on_launch(
        self, kernel: Any, args: Any, grid: Any = (1,), warmup: bool = False, **kwargs: Any
    ) -> list[Given]:
        """Record a launch of a Triton kernel; returns what it is given. One that Inductor wrote finds its
        grid from the numbers that it is given."""
        if self.session.backend == "emulated" and isinstance(kernel, JITFunction):
            defined = f"{kernel.fn.__name__} was defined for a GPU{self._at(self.trace.lines.current)}"
            raise AuditError(f"{defined}; import mrv2lab before triton, or set TRITON_INTERPRET=1")
        name, parameters, use = kernel_source.of_launch(kernel)
        bound = dict(zip(parameters, args, strict=False)) | kwargs
        extent = tuple(grid(bound)) if callable(grid) else tuple(grid)
        scalars: list[tuple[str, Any]] = []
        tensors: list[Given] = []
        for label in parameters:
            if label in bound and use.touches(label, bound):
                sort_argument(label, bound.get(label), label in use.written, scalars, tensors)
        x, y, z = (*extent, 1, 1)[:3]
        event = self._event("launch", name, (int(x), int(y), int(z)), scalars, tensors)
        self._before_work(event, tensors, use.indexes)
        self.ordering.launch(event, tensors)
        return tensors

    def _nudge(self, made: Iterable[torch.Tensor], passed: list[Given], op: Event | None) -> None:
        """What work has made, and what it was given to write; of memory from before only what is small."""
        written = [
            t.tensor for t in passed if t.written and (t.storage in self.born or t.tensor.numel() <= _FEW)
        ]
        read = [t.tensor for t in passed if not t.written]
        with self.silent(), torch.inference_mode():
            for tensor in (*made, *written):
                self.nudge(tensor, read, (value for _, value in op.scalars) if op else ())

    def nudge(self, tensor: torch.Tensor, *read: Any) -> None:
        """Move it by one ulp, if it is of such a type. See `results.nudge`."""
        if tensor.dtype in self.nudged:
            self.moved.add(tensor.dtype)
            nudge(tensor, *read, by_some=self.by_some)

    # ---- what both have in common ----

    def _event(self, sort: Any, name: str, grid: Any, scalars: Any, tensors: Any) -> Event:
        self._num_events += 1
        key = self.trace.key(name)
        if self._num_events > MAX_EVENTS:
            raise AuditError(f"the step does not end: {MAX_EVENTS} ops, the last {name}{self._at(key[0])}")
        if self._num_events % 64 == 0 and self._has_taken_too_much():
            told = "the step has taken half of the memory there is"
            raise AuditError(f"{told}, at last for {name}{self._at(key[0])}")
        in_graph = not self.in_capture or self.session.is_captured
        born = self.born
        arguments = [
            TensorArgument(
                label, at and t.data_ptr(), at and t.nbytes, (*t.shape,), strides(t), at in born, w
            )
            for label, t, w, at in tensors
        ]
        if self.capture is not None:
            for g in tensors:
                if g.storage and g.storage not in self.born and g.storage not in self.capture.kept:
                    self.capture.keep(g, self.session.on_device(g.tensor) and not is_host(g.tensor))
        passed, spot = (tuple(scalars), tuple(arguments)), self.trace.lines.spot
        event = Event(sort, name, key, grid, *passed, in_graph, is_splitting(), spot)
        self._num_work += event.is_work
        self.trace.add(event)
        self._name_what_moved(event)
        return event

    def _has_taken_too_much(self) -> bool:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # cheap, but ever taken, not now
        return bool(most > self._most_bytes and self._memory.memory_info().rss > self._most_bytes)

    def _at(self, position: int) -> str:
        place = self.session.positions.place(position)
        return f" at {place}" if place else ""

    def _name_what_moved(self, event: Event) -> None:
        """Compare with the same moment of the captures: a tensor that lies elsewhere is named now."""
        if event.sort == "view" or len(self.trace.moved) >= 64:
            return
        for other in self.against:
            twin = other.get(event.key)
            if twin is None or len(twin.tensors) != len(event.tensors):
                continue
            for old, new in twin.elsewhere_in(event):
                name = names.in_frames(new.address, sys._getframe(2), apart_from=old.address)
                if name is not None:
                    self.trace.moved[event.key, new.label] = name
                    if names.in_frames(old.address, sys._getframe(2)) is not None:
                        self.trace.still.add((event.key, new.label))
            return

    def _before_work(
        self, event: Event, tensors: list[Given], indexes: Set[str], schema: Schema | None = None
    ) -> None:
        if self.are_checked and schema is not None and indexes:
            with self.silent():
                told = beyond(schema, [*event.scalars], tensors)
            if told:
                raise AuditError(f"{told}{self._at(event.key[0])}")
        for given in tensors if indexes else ():
            label, t = given.label, given.tensor
            may_be = not (given.written or t.is_floating_point() or t.dtype is torch.bool)
            if may_be and label.partition("[")[0] in indexes and self.session.on_device(t):
                self.writers.refuse_garbage(event, given, self.in_capture)
        for given in tensors:
            if not (given.written or self.in_capture):
                self.writers.note_read(given)
            if not given.written or not self.session.on_device(given.tensor):
                continue
            if schema is None:
                self.writers.write(given.storage, None)
            elif not self.writers.leaves_garbage(schema, given.tensor, tensors, self.in_capture):
                self.writers.write(given.storage, given.tensor)
            self._save(given)

    def _save(self, given: Given) -> None:
        """Work that comes now may write a tensor: what it holds is put back after the pass."""
        _, t, _, storage = given
        with self.silent(), torch._C.DisableTorchFunction():
            t = t.detach()  # one of the audit's own: whether others own this memory can be counted
        self.session.views[id(t)] = t
        if self.capture is not None:
            if storage not in self.born:
                self.capture.written.append(t)
            return
        self.session.uncomputed.pop(storage, None)
        if storage not in self.born:
            with self.silent():
                self.saved.save(t)

    def _refuse_uncomputed(self, event: Event, tensors: list[Given]) -> None:
        """Integers that a capture made and no replay has computed: a kernel nobody knows may jump by them."""
        for given in tensors:
            is_integer = not (given.tensor.is_floating_point() or given.tensor.dtype is torch.bool)
            if is_integer and not given.written and given.storage in self.session.uncomputed:
                self.writers.refuse_garbage(event, given, self.in_capture)

    # ---- replays ----

    @contextmanager
    def replaying(self, graph: CapturedGraph) -> Iterator[None]:
        """Note a replay. What the graph does then is in the trace of its capture: nothing is asked of it."""
        try:
            with self.silent(), untraced(), _disable_current_modes(), torch._C.DisableTorchFunction():
                yield
        finally:
            self.trace.events.append(graph)
        self.ordering.replay(graph)
        self.trace.replayed_at = self.session.positions.place(self.trace.lines.current)
        uncomputed = self.session.uncomputed
        for storage in [s for s, capture in uncomputed.items() if capture.graph is graph]:
            del uncomputed[storage]


def _drawn_from(args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Given]) -> int:
    """A hash of where the generator is from which an op draws: the one that it is given, or its device's."""
    generator = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Generator)), None)
    if generator is None:
        device = tensors[0].tensor.device if tensors else torch.device(kwargs.get("device") or "cpu")
        of_gpus = torch.cuda.default_generators if device.type == "cuda" else ()
        generator = of_gpus[torch.cuda.current_device()] if of_gpus else torch.default_generator
    return hash(generator.get_state().numpy().tobytes())


def _take_out(mode: TorchDispatchMode | None) -> int | None:
    """Take a mode out of torch's stack, where it would see what an executor does to capture; returns where it
    was. None if torch itself has done so, to call it."""
    modes = _get_current_dispatch_mode_stack()
    depth = next((at for at, one in enumerate(modes) if one is mode), None)
    if depth is not None:
        above = [_pop_mode() for _ in modes[depth:]]
        for one in reversed(above[:-1]):
            _push_mode(one)
    return depth


def _put_in(mode: TorchDispatchMode | None, depth: int | None) -> None:
    """Put it back where `_take_out` has found it."""
    if depth is not None:
        above = [_pop_mode() for _ in _get_current_dispatch_mode_stack()[depth:]]
        for one in (mode, *reversed(above)):
            _push_mode(one)


def launches() -> list[tuple[Any, str]]:
    """Where kernels are launched: Triton's, and where anybody has imported Inductor, those that it wrote."""
    heuristics: Any = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    inductors = [heuristics.CachingAutotuner] if hasattr(heuristics, "CachingAutotuner") else []
    return [(owner, "run") for owner in (InterpretedFunction, JITFunction, *inductors)]
