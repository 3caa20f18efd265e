"""The capture contract, which both executors keep.

1. Capture runs the Python of `fn` once, also what stands inside ops, records its device work and executes
   none of it. What it allocates holds whatever the memory held.
2. Replay runs no Python of `fn`: the recorded work, on the recorded addresses, with the recorded scalars.
3. Host values read during capture are frozen. Reading a device value on the host is a `CaptureError`.
4. Allocations during capture come from a pool; graphs that share a pool may reuse each other's memory.
5. Passing a new tensor later changes nothing: only writing into the captured one does.
"""

import gc
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")

NESTED = "capture inside a capture: only one graph can be captured at a time in a thread"


@dataclass(frozen=True)
class Node:
    """One piece of device work in a captured graph.

    Attributes:
        grid: launch grid (x, y, z) of a kernel; None for copies, fills and emulated torch ops.
    """

    name: str  # kernel or op, for example `_lora_shrink_kernel`, `aten.mm`, `memcpy`
    grid: tuple[int, int, int] | None
    addresses: tuple[int, ...]  # device addresses among its arguments, in order

    @property
    def label(self) -> str:
        """The name without C++ namespaces, template parameters and arguments, for people to read."""
        name = self.name.removeprefix("void ").replace("(anonymous namespace)::", "")
        return re.split("[<(]", name, maxsplit=1)[0].rpartition("::")[2]


class CaptureSession(ABC):
    """A capture in progress, as a context manager; `graph` hands over what was recorded in it.

    `capture` is one session around one function. A capture that breaks at an op and resumes
    behind it is several.
    """

    @abstractmethod
    def __enter__(self) -> "CaptureSession": ...

    @abstractmethod
    def __exit__(self, *exception: Any) -> None: ...

    @abstractmethod
    def graph(self, outputs: Any) -> "CapturedGraph":
        """The recorded work. Call it once, after the session has ended."""


class GraphPool(ABC):
    """Where allocations made during capture come from. Made by `graphs.new_pool`."""

    @abstractmethod
    def alias(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory, not kept alive: an address, as a graph holds it. Mirrors `weak_ref_tensor`."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """What the pool has taken so far."""


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """A context in which a variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


_watchers: ContextVar[tuple[list["CapturedGraph"], ...]] = ContextVar("watchers", default=())


@contextmanager
def replayed() -> Iterator[list["CapturedGraph"]]:
    """The graphs that this thread replays inside, in order, noted where they are replayed."""
    seen: list[CapturedGraph] = []
    with set_within(_watchers, (*_watchers.get(), seen)):
        yield seen


_idle: ContextVar[bool] = ContextVar("idle", default=False)


def idle_replays() -> AbstractContextManager[None]:
    """Within this context replays do nothing: what is right all the same was done elsewhere."""
    return set_within(_idle, True)


class CaptureObserver(ABC):
    """Is told of the captures and replays that this thread makes. See `observed`."""

    @abstractmethod
    def begin(self) -> None:
        """A capture has begun: what is entered now sees work before the capture does."""

    @abstractmethod
    def end(self) -> None:
        """The capture is about to end, well or not."""

    @abstractmethod
    def captured(self, graph: "CapturedGraph") -> None:
        """The graph of the capture that has ended last."""

    @abstractmethod
    def replaying(self, graph: "CapturedGraph") -> AbstractContextManager[None]:
        """Entered around a replay: what is issued inside is the graph's, not Python's."""


_observers: ContextVar[tuple[CaptureObserver, ...]] = ContextVar("observers", default=())


def observed(observer: CaptureObserver) -> AbstractContextManager[None]:
    """Within this context `observer` is told of every capture of this thread, whoever makes it."""
    return set_within(_observers, (*_observers.get(), observer))


def begin_observers() -> None:
    """For executors: call when a capture has begun."""
    for observer in _observers.get():
        observer.begin()


def end_observers() -> None:
    """For executors: call when a capture is about to end."""
    for observer in reversed(_observers.get()):
        observer.end()


class CapturedGraph(ABC):
    """Recorded device work that can be replayed.

    Attributes:
        outputs: what `fn` returned at capture. Its tensors hold results only after a replay.
        nodes: the recorded work, in order of recording.
        num_replays: how often `replay` has run, so that "did a graph run at all?" has an answer.
    """

    def __init__(self, outputs: Any, nodes: tuple[Node, ...]):
        self.outputs = outputs
        self.nodes = nodes
        self.num_replays = 0
        for observer in _observers.get():
            observer.captured(self)

    def replay(self) -> None:
        """Run the recorded work again. No Python of the captured function runs."""
        with ExitStack() as stack:
            for observer in _observers.get():
                stack.enter_context(observer.replaying(self))
            if not _idle.get():
                self._replay()
        self.num_replays += 1
        for seen in _watchers.get():
            seen.append(self)

    @abstractmethod
    def _replay(self) -> None: ...

    def kernels(self) -> Counter[str]:
        """Count the nodes by label."""
        return Counter(node.label for node in self.nodes)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """An old graph that the collector finds during a capture would be destroyed, and end the new one."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
