"""How much work a piece of a step is: the nodes that graphs replay, and what Python issues beside them.

with counted():                # ops are counted in here, at the price of looking at each
    with measured() as work:
        step()
work.num_nodes, work.num_ops

Of ops those count that compute, and launches of Triton kernels, on device memory. Views, allocations and
copies do not, for a step of graphs needs them as well: its inputs have to be copied in. Of a graph all nodes
count.
"""

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.utils import _python_dispatch
from triton import JITFunction
from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.graphs.base import CapturedGraph, CaptureObserver, observed, replayed, set_within
from mrv2lab.graphs.guard import is_view, makes_tensors, tensors_in
from mrv2lab.graphs.memory import is_host
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.graphs.python_ops import is_python_op, opened

_MOVES = ("empty", "new_empty", "copy_", "_to_copy", "clone", "fill_", "zero_", "zeros", "full", "lift_fresh")


class Amount(NamedTuple):
    """How much was done for a model in one step."""

    nodes: int = 0  # of graphs, replayed
    ops: int = 0  # ops and launches, issued eagerly
    splitting: int = 0  # those of the ops that piecewise graphs leave out: attention's


@dataclass
class Work:
    """What was done inside a `measured` block.

    Attributes:
        ops: what Python issued beside them, by name; empty outside of `counted`.
    """

    graphs: list[CapturedGraph]  # those that were replayed, in order
    ops: Counter[str] = field(default_factory=Counter)
    num_splitting: int = 0  # how many of these were issued inside `splitting`

    @property
    def num_nodes(self) -> int:
        """Nodes that were replayed."""
        return sum(len(graph.nodes) for graph in self.graphs)

    @property
    def num_ops(self) -> int:
        """Ops and launches that were issued eagerly."""
        return self.ops.total()

    @property
    def amount(self) -> Amount:
        """The numbers alone."""
        return Amount(self.num_nodes, self.num_ops, self.num_splitting)


_open: ContextVar[tuple[Work, ...]] = ContextVar("open", default=())
_splitting: ContextVar[bool] = ContextVar("splitting", default=False)


@contextmanager
def splitting() -> Iterator[None]:
    """What is issued inside is an op at which piecewise graphs split a model. See `splitting_ops` in vLLM."""
    with set_within(_splitting, True):
        yield


def is_splitting() -> bool:
    """Whether what is issued now is issued inside `splitting`."""
    return _splitting.get()


def moves(name: str) -> bool:
    """Whether an op of torch, called `copy_` or the like, moves or makes memory and computes nothing."""
    return name.startswith(_MOVES)


@contextmanager
def measured() -> Iterator[Work]:
    """The work of this thread inside. Blocks nest: what is done in an inner one counts in the outer ones."""
    with replayed() as graphs:
        work = Work(graphs)
        with set_within(_open, (*_open.get(), work)):
            yield work


@contextmanager
def counted() -> Iterator[None]:
    """Within this context `measured` blocks see ops and launches, except those of replays and captures."""
    counter = _Counter()
    with ExitStack() as stack:
        for owner in (InterpretedFunction, JITFunction):
            stack.enter_context(patch.object(owner, "run", _noted(owner.run, counter)))
        stack.enter_context(patch.object(threading.Thread, "start", _counted_too()))
        stack.enter_context(patch.object(_python_dispatch, "_len_torch_dispatch_stack", _num_to_switch_off))
        stack.enter_context(observed(_Pause(counter)))
        stack.enter_context(counter)
        yield


class _Counter(DispatchMode):
    """Notes every op that computes, unless it is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused or not _open.get():
            return func(*args, **kwargs)
        # Inference mode hands over whole composites, and an op in Python is host code: count what they issue.
        if _is_composite(func) or is_python_op(func, args, kwargs):
            result = opened(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        if _computes(func) and _on_device(args, kwargs):
            self.note(func._schema.name)
        return func(*args, **kwargs)

    def note(self, name: str) -> None:
        """Count one piece of work in every open block."""
        if not self.paused:
            for work in _open.get():
                work.ops[name] += 1
                work.num_splitting += is_splitting()


def _num_to_switch_off() -> int:
    """In `torch.utils._python_dispatch`, which switches off so many modes: ours, for others, stay on.

    For torch and for this package, whose looking counts as no work, all go.
    """
    number, frame = torch._C._len_torch_dispatch_stack(), sys._getframe(1)
    if frame.f_code.co_name != "_disable_current_modes":
        return number
    while frame.f_back and frame.f_globals["__name__"] in (_python_dispatch.__name__, "contextlib"):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").startswith(("mrv2lab.", "torch.")):
        return number
    modes = map(torch._C._get_dispatch_stack_at, range(number))
    return number - max((at for at, mode in enumerate(modes, 1) if isinstance(mode, _Counter)), default=0)


def _counted_too() -> Callable[[threading.Thread], None]:
    """Threads that are started meanwhile work for the blocks that are open. A mode is of one thread only."""
    start = threading.Thread.start

    def started(thread: threading.Thread) -> None:
        context, run, counter = copy_context(), thread.run, _Counter()

        def within() -> None:
            with observed(_Pause(counter)), counter:
                run()

        thread.run = lambda: context.run(within)  # type: ignore[method-assign]
        start(thread)

    return started


class _Pause(CaptureObserver):
    """What happens in a replay is the graph's; what happens in a capture is recorded and not done."""

    def __init__(self, counter: _Counter):
        self.counter = counter

    def begin(self) -> None:
        self.counter.paused += 1

    def end(self) -> None:
        self.counter.paused -= 1

    def captured(self, graph: CapturedGraph) -> None:
        """Nothing to note."""

    def replaying(self, graph: CapturedGraph) -> AbstractContextManager[None]:
        return self._replaying()

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end()


def _noted(run: Callable[..., Any], counter: _Counter) -> Callable[..., Any]:
    @functools.wraps(run)
    def noted(kernel: Any, *args: Any, warmup: bool, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if not warmup:
            counter.note(kernel.fn.__name__)
        return run(kernel, *args, warmup=warmup, **kwargs)

    return noted


@functools.cache
def _is_composite(func: Any) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return func.namespace == "aten" and bool(has_kernel(func.name(), "CompositeImplicitAutograd"))


@functools.cache
def _computes(func: Any) -> bool:
    name = func._schema.name.removeprefix("aten::")
    return not is_view(func) and name != "detach" and not moves(name) and makes_tensors(func)


def _on_device(args: Any, kwargs: Any) -> bool:
    """Whether an op works on device memory, or on what plays it. One without tensors makes them there."""
    tensors = tensors_in(args, kwargs)
    if not tensors:
        return torch.device(kwargs.get("device") or "cpu").type == "cuda" or not torch.cuda.is_available()
    return any(t.is_cuda or not (torch.cuda.is_available() or is_host(t)) for t in tensors)


def fits_a_graph(mode: str, sizes: Sequence[int], num_tokens: int, *, is_decode: bool) -> bool:
    """Whether a batch fits a size that graphs were asked for, whatever has been captured since.

    Args:
        mode: name of the `CUDAGraphMode` that was asked for. What became of it may be the bug.
        sizes: `cudagraph_capture_sizes`, in tokens.
        is_decode: every request has the tokens of a decode step: one, or one more than it has drafts.
    """
    if mode == "NONE" or (mode == "FULL_DECODE_ONLY" and not is_decode):
        return False
    return num_tokens <= max(sizes, default=0)
