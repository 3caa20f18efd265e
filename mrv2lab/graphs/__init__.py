"""How work is captured: one contract (`base`), two executors (`cuda`, `emulated`).

graph = capture(step)     # runs the Python of `step` once, and none of its device work
graph.replay()            # runs the recorded device work, and none of its Python
"""

from collections.abc import Callable
from typing import Any, Literal

import torch

from mrv2lab.errors import BadInput, CaptureError, choose
from mrv2lab.graphs import cuda, emulated
from mrv2lab.graphs.base import CapturedGraph, CaptureSession, GraphPool, Node, replayed
from mrv2lab.graphs.memory import POISON, host, is_host

Backend = Literal["auto", "cuda", "emulated"]

__all__ = [
    "Backend",
    "CaptureError",
    "CaptureSession",
    "CapturedGraph",
    "GraphPool",
    "Node",
    "capture",
    "device_of",
    "host",
    "is_capturing",
    "is_host",
    "new_pool",
    "poison",
    "replayed",
    "resolve",
    "session",
]


def resolve(backend: str) -> Literal["cuda", "emulated"]:
    """Turn `auto` into what this machine has, and check the rest.

    Raises:
        BadInput: an unknown backend, or `cuda` on a machine without a GPU.
    """
    choose("backend", backend, ["auto", "cuda", "emulated"])
    has_gpu = torch.cuda.is_available()
    if backend == "cuda" and not has_gpu:
        raise BadInput("'cuda' needs an NVIDIA GPU and there is none here; use 'emulated', or 'auto'")
    return "cuda" if backend == "cuda" or (backend == "auto" and has_gpu) else "emulated"


def device_of(backend: str) -> torch.device:
    """The device whose tensors `backend` captures: cuda, or cpu playing it."""
    return torch.device("cuda" if resolve(backend) == "cuda" else "cpu")


def is_capturing() -> bool:
    """Whether this thread is inside a capture: device work is recorded now, and not run."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    return on_gpu or emulated.is_capturing()


def new_pool(backend: str = "auto") -> GraphPool:
    """A memory pool for graphs that are never replayed at the same time, and so may share memory."""
    return cuda.CudaPool() if resolve(backend) == "cuda" else emulated.EmulatedPool()


def poison(pool: GraphPool, backend: str = "auto") -> CapturedGraph:
    """Leave a loud pattern in the free memory of a pool, as earlier graphs leave their results there.

    Without it, memory that nobody wrote often happens to be zero on a GPU, and what reads it happens to
    be right. The emulator fills every captured allocation anyway.

    Returns:
        The graph that owns the memory. Keep it: the pool forgets what no graph holds.
    """

    def fill() -> None:
        # Small blocks and large ones live in different segments of CUDA's caching allocator.
        blocks = [
            torch.empty(n, dtype=torch.int16, device=device_of(backend)) for n in (*[1 << 18] * 8, 1 << 23)
        ]
        for block in blocks:
            block.fill_(POISON)

    graph = capture(fill, backend=backend, pool=pool)
    graph.replay()
    return graph


def capture(fn: Callable[[], Any], *, backend: str = "auto", pool: GraphPool | None = None) -> CapturedGraph:
    """Capture the device work of `fn` (the contract is in `graphs.base`).

    Run `fn` once before: lazy set-up (compiling a kernel, loading a library) does not belong in a graph.

    Args:
        fn: zero-argument callable over static buffers. It runs exactly once.
        backend: `cuda`, `emulated`, or `auto` for what the machine has.
        pool: shared memory pool from `new_pool`; by default the graph gets one of its own.

    Raises:
        CaptureError: `fn` reads a device value on the host, captures inside a capture, or does
            something else that a graph cannot hold. Nothing half-captured is left behind.
        BadInput: unknown backend, no GPU, or a pool of the other backend.
    """
    with session(backend=backend, pool=pool) as recording:
        outputs = fn()
    return recording.graph(outputs)


def session(*, backend: str = "auto", pool: GraphPool | None = None) -> CaptureSession:
    """A capture to be begun and ended by hand: `with session() as s: ...`, then `s.graph(outputs)`.

    Raises:
        BadInput: unknown backend, no GPU, or a pool of the other backend.
    """
    if resolve(backend) == "cuda":
        if not isinstance(pool, cuda.CudaPool | None):
            raise BadInput("this pool belongs to backend 'emulated'; make one with new_pool('cuda')")
        return cuda.CudaSession(pool)
    if not isinstance(pool, emulated.EmulatedPool | None):
        raise BadInput("this pool belongs to backend 'cuda'; make one with new_pool('emulated')")
    return emulated.EmulatedSession(pool)
