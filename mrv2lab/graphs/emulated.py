"""The CPU executor: a model of CUDA graph capture, with the same contract and no claim to speed.

While `fn` runs under capture, every torch op and every Triton launch on a tensor that plays device
memory is written to a tape instead of being run. Results get memory from the pool, filled with a
poison pattern, because on a GPU too nothing has been computed yet. Views are made at once: they are
bookkeeping of the host. Replay walks the tape.

An op is first tried on memory of its own (`trial`), so what it would raise at replay it raises at capture;
memory of others is kept by its address (`addresses`); the border between host and device is drawn where
torch sees none (`border`). What it does otherwise than a GPU: notebook 01, "What the emulator leaves out".
"""

import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.errors import CaptureError, EmulatorLimit
from mrv2lab.graphs import addresses, streams
from mrv2lab.graphs.base import (
    NESTED,
    CapturedGraph,
    CaptureSession,
    GraphPool,
    Node,
    begin_observers,
    end_observers,
)
from mrv2lab.graphs.border import Border
from mrv2lab.graphs.guard import Memory, is_mask, is_view, makes_tensors, no_host_reads
from mrv2lab.graphs.memory import is_host, is_pinned, made_on_host, unwritten
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.graphs.nested import each_tensor, leaves, once, tensors_in
from mrv2lab.graphs.protection import memory_protection
from mrv2lab.graphs.python_ops import seen_inside
from mrv2lab.graphs.trial import require_dense, results_of

aten = torch.ops.aten
_MEMORY = Memory("cpu", lambda tensor: not is_host(tensor), is_pinned)
_INDEXING = {aten.index.Tensor}
_INDEXING |= {op.default for op in (aten.index_put, aten.index_put_, aten._index_put_impl_)}
_ALIGNMENT = 256  # bytes, like the CUDA caching allocator rounds

_capturing = threading.local()


def is_capturing() -> bool:
    """Whether this thread records what it launches."""
    return getattr(_capturing, "active", None) is not None


_of_pools: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()  # address -> block


class EmulatedPool(GraphPool):
    """Memory for captured tensors: blocks go back when the last tensor on them dies, and are lent again."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._blocks: dict[int, np.ndarray] = {}  # address -> block

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor whose memory holds the poison pattern, and goes back to the pool when it dies."""
        size, stride, dtype = like.size(), like.stride(), like.dtype
        elements = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if size.numel() else 0
        num_bytes = -(-max(1, elements * dtype.itemsize) // _ALIGNMENT) * _ALIGNMENT
        block = self._take(num_bytes)
        lease = unwritten(block[:num_bytes])  # dies with the tensor's storage, which gives the block back
        if dtype is torch.bool:  # has two values, and either may be the one that does no harm
            lease[:elements] = np.arange(1, elements + 1) % 2
        weakref.finalize(lease, self._free.append, block).atexit = False
        with torch.inference_mode(False):  # callers may write to captured tensors outside inference mode
            return torch.from_numpy(lease).view(dtype).as_strided(size, stride)

    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory: without a lease where it is a pool's, else by its address."""
        block = _of_pools.get(tensor.untyped_storage().data_ptr())
        return addresses.alias(tensor) if block is None else addresses.over(torch.from_numpy(block), tensor)

    @property
    def num_bytes(self) -> int:
        """All blocks, lent and free."""
        return sum(block.nbytes for block in self._blocks.values())

    def _take(self, num_bytes: int) -> np.ndarray:
        fitting = [i for i, block in enumerate(self._free) if block.nbytes >= num_bytes]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].nbytes))
        block = np.empty(num_bytes, np.uint8)
        self._blocks[block.ctypes.data] = _of_pools[block.ctypes.data] = block
        return block


class EmulatedGraph(CapturedGraph):
    """A tape of torch ops and interpreted Triton launches."""

    def __init__(self, outputs: Any, recorder: "_Recorder"):
        super().__init__(outputs, tuple(recorder.nodes))
        self._tape, self.issued = recorder.tape, recorder.ties.issued

    @torch.inference_mode()
    def _replay(self) -> None:
        if getattr(_capturing, "active", False):
            raise CaptureError("replay() inside a capture; capture the work itself, or replay afterwards")
        addresses.look_after_moves()
        with torch._C._DisableAutocast():  # what was recorded is what autocast had left
            for run in self._tape:
                run()


class _Recorder(DispatchMode):
    """Writes device work to the tape, runs host work at once."""

    def __init__(self, pool: EmulatedPool, ties: streams.Ties):
        super().__init__()
        self.pool, self.ties = pool, ties
        self.nodes: list[Node] = []
        self.tape: list[Callable[[], None]] = []
        self.read: set[int] = set()  # addresses
        self._empty: list[torch.Tensor] = []  # results without elements: nobody else gets their addresses
        self._seed = torch.initial_seed()
        self._numbers: torch.Tensor | None = None  # where the generator was when it got its seed again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = tensors_in(args, kwargs)
        if not (tensors or makes_tensors(func)) or not streams.is_captured():  # a mark of the profiler's, say
            return func(*args, **kwargs)
        if func is aten.lift_fresh.default or (tensors and all(is_host(t) for t in tensors)):
            return each_tensor(made_on_host, func(*args, **kwargs))
        if away := [t.device for t in tensors if t.device.type != "cpu"]:
            raise EmulatorLimit(f"{func} got a tensor on {away[0]}: the emulator records the CPU's only")
        require_dense(func, tensors)
        is_question = bool(func._schema.returns) and not makes_tensors(func)  # of where a tensor lies, say
        if is_question or is_view(func):
            return func(*args, **kwargs)
        if func in _INDEXING:
            args = (args[0], _frozen_masks(*args[:2]), *args[2:])
        outputs = self._outputs(func, args, kwargs)
        if not func._schema.name.startswith(("aten::empty", "aten::new_empty")):  # that is no device work
            self._record_op(func, args, kwargs, outputs)
        return outputs

    def _outputs(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the op returns: tensors that it was given and writes, or new poisoned ones from the pool."""
        schema = func._schema
        written = {
            frozenset(a.alias_info.before_set): args[i] if i < len(args) else kwargs[a.name]
            for i, a in enumerate(schema.arguments)
            if a.alias_info is not None and a.alias_info.is_write
        }
        places = [r.alias_info and frozenset(r.alias_info.before_set) for r in schema.returns]
        if all(place in written for place in places):
            returned = tuple(written[place] for place in places)
            is_out = any(a.is_out for a in schema.arguments)  # may be too small, or empty: torch resizes it
            results = results_of(func, args, kwargs) if is_out or func.namespace == "aten" else None
            if is_out:
                for target, shape in zip(returned, leaves(results), strict=True):
                    if target.shape != shape.shape:
                        target.resize_(shape.shape)
            return (returned if len(places) > 1 else returned[0]) if places else None
        made = each_tensor(self.pool.allocate, results_of(func, args, kwargs))
        if not written or len(places) == 1:
            return made
        return tuple(written.get(place, new) for place, new in zip(places, made, strict=True))

    def _address(self, func: Any, tensor: torch.Tensor) -> torch.Tensor:
        """What the tape keeps of an argument: its memory, or the value of what the host passes by value.
        Pinned memory too is read at replay by copies only: any other op takes a host scalar's value as it is.
        """
        is_copied = is_pinned(tensor) and func is aten.copy_.default
        return tensor.clone() if is_host(tensor) and not is_copied else self.pool.alias(tensor)

    def _record_op(self, func: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        name = func._schema.name.replace("::", ".")
        if name == "aten.mkldnn_rnn_layer" and args[-1]:  # training: it hides what the backward pass reads
            flags = "torch.backends.mkldnn.flags(enabled=False)"
            raise EmulatorLimit(f"the emulator cannot record {name}; under {flags} torch does without it")
        for t in tensors_in(args, kwargs):
            if is_host(t) and t.dim() and func is not aten.copy_.default and func not in _INDEXING:
                raise CaptureError(f"{name} mixes a host tensor of shape {list(t.shape)} with device tensors")
        self._empty += [t for t in tensors_in(outputs) if not t.numel()]
        args, kwargs, results = each_tensor(once(partial(self._address, func)), (args, kwargs, outputs))
        self.nodes.append(Node(name, None, _addresses(args, kwargs, results)))
        self.read.update(_addresses(args, kwargs))
        self._write(_op_entry(func, args, kwargs, results, self.read))

    def _write(self, entry: Callable[[], None]) -> None:
        self.tape.append(partial(_under, torch.get_default_dtype(), entry))
        self.ties.issue()

    def seed(self, seed: int) -> None:
        """As CUDA's generator under capture: another seed is an error, and its own changes nothing."""
        if seed % (1 << 64) != self._seed:
            raise CaptureError(
                f"seed {seed} during capture is another one: a graph draws on from where "
                "the generator is at each replay, and cannot hold it. Seed before the replay"
            )
        if self._numbers is None:
            self._numbers = torch.get_rng_state()

    def end(self) -> None:
        """Put the generator back to where it was, if it was seeded: torch has done that beside `seed`."""
        if self._numbers is not None:
            torch.set_rng_state(self._numbers)

    def record_launch(self, kernel: InterpretedFunction, args: Any, grid: Any, kwargs: Any) -> None:
        """Write a Triton launch to the tape. An empty grid launches nothing, as in Triton itself."""
        bound = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        extent = tuple(grid(bound)) if callable(grid) else tuple(grid)
        x, y, z = (*extent, 1, 1)[:3]
        if any(is_host(t) for t in tensors_in(args, kwargs)):
            raise CaptureError(f"{kernel.__name__} got a host tensor; kernels can only address device memory")
        if x * y * z == 0:
            return
        args, kwargs = each_tensor(self.pool.alias, (args, kwargs))
        self.read.update(_addresses(args, kwargs))
        self.nodes.append(Node(kernel.__name__, (x, y, z), _addresses(args, kwargs)))
        self._write(lambda: _run_interpreted(kernel, *args, grid=(x, y, z), warmup=False, **kwargs))


def _under(dtype: torch.dtype, entry: Callable[[], None]) -> None:
    """An entry of the tape with torch's default dtype of the capture: a kernel does not ask for it again."""
    now = torch.get_default_dtype()
    if now is dtype:
        entry()
        return
    torch.set_default_dtype(dtype)
    try:
        entry()
    finally:
        torch.set_default_dtype(now)


def _op_entry(func: Any, args: Any, kwargs: Any, results: Any, read: set[int]) -> Callable[[], None]:
    """One entry of the tape: run the op, and put what it computed at the captured addresses. Entries of the
    tape read what is in `read`.
    """
    if results is None:
        return lambda: func(*args, **kwargs)
    targets = [*leaves(results)]

    def run() -> None:
        for target, value in zip(targets, leaves(func(*args, **kwargs)), strict=True):
            if not isinstance(value, torch.Tensor) or not value.numel():
                continue  # shape functions promise results that a CPU leaves away, like batch norm's means
            if not target.numel() and target.data_ptr() not in read:
                continue  # or the other way round: an embedding bag's offsets
            if value.shape != target.shape:
                sizes = f"{list(value.shape)}, where its shape function promises {list(target.shape)}"
                raise EmulatorLimit(f"{func} gives a result of shape {sizes}: the emulator cannot replay it")
            if value.data_ptr() != target.data_ptr():
                target.copy_(value)

    return run


def _addresses(*values: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(t.data_ptr() for t in tensors_in(values)))


def _frozen_masks(tensor: torch.Tensor, indices: Any) -> list[torch.Tensor | None]:
    """Indices, with a mask of the host's replaced by what it picks now."""
    masks = [i if i is not None and is_mask(i) and is_host(i) else None for i in indices]
    if any(mask is not None for mask in masks):
        aten.index.Tensor(torch.empty(()).expand(tensor.shape), masks)  # raises where one does not fit
    found: list[torch.Tensor | None] = []
    for index, mask in zip(indices, masks, strict=True):
        found += [index] if mask is None else map(made_on_host, mask.nonzero().unbind(1))
    return found


_interpreted_run = InterpretedFunction.run


def _run_interpreted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    with memory_protection(kernel.__name__, (args, kwargs)):
        return _interpreted_run(kernel, *args, **kwargs)


def _launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """The seam through which every interpreted Triton kernel is launched."""
    __tracebackhide__ = True  # an error of a launch belongs to the line that asked for it
    recorder = getattr(_capturing, "active", None)
    if recorder is None or warmup or not streams.is_captured():
        return _run_interpreted(kernel, *args, grid=grid, warmup=warmup, **kwargs)
    return recorder.record_launch(kernel, args, grid, kwargs)


InterpretedFunction.run = _launch


def _seen_by_captures(seed_it: Callable[[int], None]) -> Callable[[int], None]:
    """The seam through which every device gets its seed, also from `torch.manual_seed` and `torch.seed`."""

    @functools.wraps(seed_it)
    def seeded(seed: int) -> None:
        recorder = getattr(_capturing, "active", None)
        if recorder is None:
            seed_it(seed)
        else:
            recorder.seed(int(seed))

    return seeded


for _name in ("manual_seed", "manual_seed_all"):
    _seeded = _seen_by_captures(getattr(torch.cuda, _name))
    setattr(torch.cuda, _name, _seeded)
    setattr(torch.cuda.random, _name, _seeded)


_asked = torch.cuda.is_current_stream_capturing


@functools.wraps(_asked)
def is_current_stream_capturing() -> bool:
    """The seam through which a program asks whether it is captured."""
    return streams.is_captured() or (torch.cuda.is_available() and _asked())


torch.cuda.is_current_stream_capturing = is_current_stream_capturing
torch.cuda.graphs.is_current_stream_capturing = is_current_stream_capturing


class EmulatedSession(CaptureSession):
    """Records what this thread launches. One at a time in a thread."""

    def __init__(self, pool: EmulatedPool | None):
        self._pool = pool or EmulatedPool()

    def __enter__(self) -> "EmulatedSession":
        if getattr(_capturing, "active", None) is not None:
            raise CaptureError(NESTED)
        self._modes = ExitStack()
        ties = self._modes.enter_context(streams.captured())
        _capturing.active = self._recorder = _Recorder(self._pool, ties)
        self._modes.enter_context(self._recorder)
        self._modes.enter_context(seen_inside(Border()))
        self._modes.enter_context(no_host_reads(_MEMORY))
        begin_observers()
        return self

    def __exit__(self, *exception: Any) -> None:
        end_observers()
        try:
            self._modes.__exit__(*exception)
        finally:
            _capturing.active = None
            self._recorder.end()
        if exception[:1] == (None,):
            self._recorder.ties.require_joined()

    def graph(self, outputs: Any) -> EmulatedGraph:
        return EmulatedGraph(outputs, self._recorder)
