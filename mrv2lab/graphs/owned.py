"""Graphs that a program makes by itself, with `torch.cuda.CUDAGraph` and `torch.cuda.graph`.

Where there is a GPU, captures and replays inside of `observable` are told of. Where there is none,
`torch.cuda` has a model of both from when this is imported, as it has of streams: the same program runs, and
the emulator records. `make_graphed_callables` is torch's own, over these.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import torch

from mrv2lab.errors import CaptureError
from mrv2lab.graphs import cuda, streams
from mrv2lab.graphs.base import CapturedGraph
from mrv2lab.graphs.emulated import EmulatedPool, EmulatedSession
from mrv2lab.graphs.foreign import observable_graphs

_CAPTURABLE = "_get_capturable_supported_devices"  # what optimizers of torch 2.13 ask


class CUDAGraph:
    """`torch.cuda.CUDAGraph` by the emulator. RuntimeError: as torch's."""

    _under_way: "CUDAGraph | None" = None  # its capture goes on

    def __init__(self, keep_graph: bool = False):
        self.graph: CapturedGraph | None = None
        self._pool: EmulatedPool | None = None
        self._session: EmulatedSession | None = None

    def capture_begin(self, pool: EmulatedPool | None = None, capture_error_mode: str = "global") -> None:
        """Record what this thread issues from here on, with memory of a pool."""
        if self.graph is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new one, reset()"
            )
        if not isinstance(pool, EmulatedPool | None):
            raise RuntimeError(
                f"{pool!r} is no pool: give what graph_pool_handle() or pool() of a graph gives"
            )
        session = EmulatedSession(pool := pool or EmulatedPool())
        session.__enter__()
        self._pool, self._session, CUDAGraph._under_way = pool, session, self

    def capture_end(self, *exception: Any) -> None:
        """What was recorded is the graph, unless an exception has ended it."""
        session, self._session = self._session, None
        if session is None:
            raise RuntimeError("capture_end() without a capture that has begun")
        CUDAGraph._under_way = None
        session.__exit__(*(exception or (None, None, None)))
        self.graph = None if any(exception) else session.graph(None)

    def instantiate(self) -> None:
        """A tape needs no making."""

    def replay(self) -> None:
        """Run what was recorded."""
        if self.graph is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self.graph.replay()

    def reset(self) -> None:
        """Let go of what was recorded, and of its memory."""
        self.graph = self._pool = None

    def pool(self) -> EmulatedPool | None:
        """Where its memory comes from, for other graphs."""
        return self._pool

    def enable_debug_mode(self) -> None:
        """Nothing is written anywhere."""

    debug_dump = register_generator_state = lambda self, given: None


class Graph:
    """`torch.cuda.graph`: what is issued inside becomes the graph."""

    default_capture_stream: Any = None

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, **kwargs: Any):
        self.cuda_graph, self._pool, self._chosen = cuda_graph, pool, stream

    def __enter__(self) -> None:
        gc.collect()
        self.cuda_graph.capture_begin(self._pool)
        self._origin = torch.cuda.current_stream()
        self._within = ExitStack()
        if self._chosen is not None:
            self._chosen.wait_stream(self._origin)
            self._within.enter_context(torch.cuda.stream(self._chosen))

    def __exit__(self, *exception: Any) -> None:
        self._within.close()
        if self._chosen is not None and not any(exception):
            self._origin.wait_stream(self._chosen)
        self.cuda_graph.capture_end(*exception)


def _synchronize(device: Any = None) -> None:
    """`torch.cuda.synchronize`: work has run. CaptureError: in a capture it has not."""
    if streams.is_captured():
        raise CaptureError("torch.cuda.synchronize() waits for the device, and a capture runs nothing")


@contextmanager
def _observable() -> Iterator[None]:
    original = torch.cuda.CUDAGraph
    with observable_graphs():
        observed = torch.cuda.CUDAGraph

        class OfPrograms(observed):  # type: ignore[misc, valid-type]
            def __new__(cls, keep_graph: bool = False) -> Any:
                if sys._getframe(1).f_globals.get("__name__") == cuda.__name__:
                    return original(keep_graph)  # its session tells of it
                return super().__new__(cls, keep_graph)

        torch.cuda.CUDAGraph = OfPrograms  # type: ignore[misc]
        yield


@contextmanager
def _ended() -> Iterator[None]:
    """What an exception has left open inside is ended: else nothing can be captured any more."""
    try:
        yield
    finally:
        if (left := CUDAGraph._under_way) is not None:
            with suppress(Exception):  # whoever has caught the exception may have taken its modes away
                left.capture_end(RuntimeError, RuntimeError("left open"), None)


def observable() -> AbstractContextManager[object]:
    """Inside, graphs of torch's that are made can be told of, then and later. Without a GPU all can."""
    if not torch.cuda.is_available():
        return _ended()
    is_ours = torch.cuda.CUDAGraph.__module__.startswith(__package__)
    return nullcontext() if is_ours else _observable()


def _capturable(asked: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Where an optimizer of torch's may be captured: also where CPU tensors play the device's."""
    return lambda *given, **named: [*asked(*given, **named), "cpu"]


if not torch.cuda.is_available():
    for _name, _module in list(sys.modules.items()):
        if _name.startswith("torch.optim.") and (_asked := vars(_module).get(_CAPTURABLE)):
            setattr(_module, _CAPTURABLE, _capturable(_asked))
    for _at in (torch.cuda, torch.cuda.graphs):
        _at.CUDAGraph, _at.graph, _at.graph_pool_handle = CUDAGraph, Graph, EmulatedPool  # type: ignore
    torch.cuda.synchronize = _synchronize
    torch.cuda.current_device, torch.cuda.set_device = lambda: 0, lambda device: None
