"""A capture that breaks at chosen ops, runs them eagerly, and resumes behind them.

with BreakableCUDAGraphCapture() as capture:
    step()  # at every op decorated with `eager_break_during_capture`: end a graph, run the op, begin the next
capture.replay()  # [graph.replay, op, graph.replay, ...], in that order

Replay runs no Python of `step`, except for the broken-out ops. They see the captured tensors again, at
the captured addresses, and the host state of the moment. For this to be right, an op has to write into
an output that its caller provides, and whatever surrounds the op on the host has to be broken out with it.

Mirrors `vllm/compilation/breakable_cudagraph.py` (vLLM #42304).
"""

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map_only

from mrv2lab.errors import CaptureError
from mrv2lab.graphs import new_pool, session
from mrv2lab.graphs.base import NESTED, CapturedGraph, CaptureSession, GraphPool
from mrv2lab.graphs.guard import tensors_in
from mrv2lab.graphs.python_ops import modes_as_found
from mrv2lab.graphs.work import splitting

F = TypeVar("F", bound=Callable[..., Any])


class BreakError(CaptureError):
    """A broken-out op breaks a rule without which its replays would be wrong."""


def eager_break_during_capture(fn: F) -> F:
    """Make `fn` an op at which a `BreakableCUDAGraphCapture` breaks. Elsewhere `fn` runs as it is.

    It must be the outermost decorator: what an outer one does on the host would run at capture only.
    BreakError: during a capture, if `fn` returns something (the graphs behind it hold the address of this one
    answer, and a replay makes another), or if its name stands for a function around it.
    """

    def in_place(*args: Any, **kwargs: Any) -> None:
        if (result := fn(*args, **kwargs)) is not None:
            raise BreakError(
                f"{_name(fn)} returned a {type(result).__name__} where the capture breaks; graphs behind it "
                "would keep reading this one. Write into an output tensor that the caller provides, and "
                "return nothing"
            )

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        capture = BreakableCUDAGraphCapture.current()
        if capture is None or not capture.is_capturing:
            return fn(*args, **kwargs)
        _require_outermost(wrapper)
        return capture.add_eager(in_place, *args, **kwargs)

    return wrapper  # type: ignore[return-value]


def _require_outermost(wrapper: Callable[..., Any]) -> None:
    """Compare what the name of the op stands for with the wrapper and what lies inside it."""
    named: Any = sys.modules.get(wrapper.__module__)
    for part in wrapper.__qualname__.split("."):  # `<locals>` is nobody's attribute: such a name says nothing
        named = getattr(named, part, None)
    inside: Any = wrapper
    while inside is not None and getattr(inside, "__func__", inside) is not named:  # a method is its function
        inside = getattr(inside, "__wrapped__", None)
    if named is not None and inside is None:
        raise BreakError(
            f"{_name(wrapper)} is decorated outside of eager_break_during_capture; what that decorator does "
            "on the host would run at capture and never again. Make eager_break_during_capture the outermost "
            "decorator"
        )


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", repr(type(fn).__name__))


class BreakableCUDAGraphCapture:
    """Several graphs and the ops between them, in memory of one pool. Mirrors `BreakableCUDAGraphCapture`.
    CaptureError: on entering, while another capture is under way in this thread.
    """

    _tls = threading.local()

    def __init__(self, *, backend: str = "auto", pool: GraphPool | None = None):
        self.backend = backend
        self.pool = pool or new_pool(backend)
        self.segments: list[Callable[[], Any]] = []  # what `replay` calls, in order
        self.graphs: list[CapturedGraph] = []  # the captured ones among them
        self._session: CaptureSession | None = None

    @classmethod
    def current(cls) -> "BreakableCUDAGraphCapture | None":
        """The capture under way in this thread."""
        return getattr(cls._tls, "active", None)

    @property
    def is_capturing(self) -> bool:
        """False outside, and while a broken-out op runs."""
        return self._session is not None

    @property
    def num_graphs(self) -> int:
        return len(self.graphs)

    @property
    def num_eager_breaks(self) -> int:
        return len(self.segments) - len(self.graphs)

    def __repr__(self) -> str:
        return f"BreakableCUDAGraphCapture(graphs={self.num_graphs}, eager_breaks={self.num_eager_breaks})"

    def __enter__(self) -> "BreakableCUDAGraphCapture":
        if self.current() is not None:
            raise CaptureError(NESTED)
        with ExitStack() as stack:
            stack.enter_context(modes_as_found())
            self._begin_segment()
            self._modes = stack.pop_all()
        self._tls.active = self
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tls.active = None
        try:
            if self.is_capturing:
                self._end_segment(*exception)
        finally:
            self._modes.close()
            # Half a model is no model. Not sooner: to destroy a graph during a capture ends the capture.
            if exception[0] is not None:
                self.segments.clear()
                self.graphs.clear()

    def _begin_segment(self) -> None:
        beginning = session(backend=self.backend, pool=self.pool)
        beginning.__enter__()
        self._session = beginning

    def _end_segment(self, *exception: Any) -> None:
        ending, self._session = self._session, None
        assert ending is not None
        ending.__exit__(*(exception or (None, None, None)))
        if exception and exception[0] is not None:
            return
        graph = ending.graph(None)
        self.graphs.append(graph)
        self.segments.append(graph.replay)

    def add_eager(self, fn: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """End the running segment, run `fn` now and at every replay, and begin the next segment. What `fn`
        reads now has not been computed: the graph before it was recorded, not run.
        """
        self._end_segment()
        # Addresses, not tensors: a graph owns this memory, and may lend it on once the model lets go of it.
        args, kwargs = tree_map_only(torch.Tensor, self.pool.alias, (args, kwargs))
        segment = splitting()(functools.partial(fn, *args, **kwargs))
        segment()
        self.segments.append(segment)
        self._begin_segment()

    @torch.inference_mode()
    def replay(self) -> None:
        """Run graphs and broken-out ops, in order of capture. CaptureError: there is nothing to replay,
        because the capture has failed or is not over.
        """
        if not self.graphs or self.is_capturing:
            raise CaptureError("nothing to replay: the capture failed, or is not over")
        for segment in self.segments:
            segment()

    def kernels(self) -> Counter[str]:
        """Nodes of all graphs by label."""
        return sum((graph.kernels() for graph in self.graphs), Counter())


class BreakableCUDAGraphWrapper:
    """One breakable capture of a model for each shape of input. Mirrors `BreakableCUDAGraphWrapper`.

    vLLM keys its captures by the batch descriptor of the forward context; here the shapes say the same.
    As there, the call that captures returns memory in which nothing has been computed yet.
    """

    def __init__(self, runnable: Callable[..., Any], *, backend: str, pool: GraphPool):
        self.runnable, self.backend, self.pool = runnable, backend, pool
        # By shapes: the capture, where its inputs lie, and what it returns.
        self.entries: dict[tuple[torch.Size, ...], tuple[BreakableCUDAGraphCapture, list[int], Any]] = {}

    def __call__(self, **inputs: Any) -> Any:
        """Capture at the first call with these shapes, replay at every other. CaptureError: an input has
        moved since the capture. vLLM looks only when it logs for debugging.
        """
        shapes = tuple(tensor.shape for tensor in tensors_in(inputs))
        addresses = [tensor.data_ptr() for tensor in tensors_in(inputs)]
        if shapes not in self.entries:
            capture, outputs = self._capture(inputs)
            self.entries[shapes] = capture, addresses, outputs
            return outputs
        capture, captured, outputs = self.entries[shapes]
        if addresses != captured:
            raise CaptureError(
                f"inputs of shapes {[list(s) for s in shapes]} are not where they were at capture; "
                "replay would read the old ones. Copy new values into the captured tensors"
            )
        capture.replay()
        return outputs

    def _capture(self, inputs: dict[str, Any]) -> tuple[BreakableCUDAGraphCapture, Any]:
        with BreakableCUDAGraphCapture(backend=self.backend, pool=self.pool) as capture:
            outputs = self.runnable(**inputs)
        # An address again: the pool can lend the memory to the next capture.
        return capture, tree_map_only(torch.Tensor, self.pool.alias, outputs)
