"""What an audit costs, against what it audits: time of one capture and two replays, bytes of the pool."""

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch

from mrv2lab.audit.driver import audit
from mrv2lab.graphs import CapturedGraph, capture, device_of, new_pool, resolve

SIZES = (10_000, 20_000, 50_000, 100_000)


@dataclass(frozen=True)
class Cost:
    """One size. Times are the better of two, for the machine may have others to serve."""

    backend: str
    num_nodes: int  # nodes of the graph
    capture_s: float  # one capture, reading the nodes included
    replays_s: float  # two replays
    audit_s: float  # one audit
    pool_bytes: int  # what the graph's pool takes
    # the most that the device, or else the process, takes more during the audit than after an eager run of
    # the step. The audit has a graph of its own, so one pool is part of it.
    audit_bytes: int

    @property
    def ratio(self) -> float:
        """The audit over one capture and two replays."""
        return self.audit_s / (self.capture_s + self.replays_s)


class Chain:
    """A step of many small ops over one buffer, none of whose results is kept, and a large one that is.

    The large one makes the pool so large that it can be told from the pieces in which memory is taken.
    """

    def __init__(self, num_nodes: int, device: torch.device, width: int = 1024, hidden_size: int = 1 << 23):
        self.num_nodes = num_nodes
        self.x = torch.ones(width, device=device)
        self.hidden = torch.ones(hidden_size // width, width, device=device)

    def step(self) -> torch.Tensor:
        y = self.x
        for _ in range(self.num_nodes - 1):
            y = y + 1.0
        return self.hidden + y

    def vary(self) -> None:
        self.x.add_(1.0)


def measure(backend: str = "auto", sizes: Sequence[int] = SIZES) -> list[Cost]:
    """Measure graphs of several sizes."""
    backend = resolve(backend)
    return [_measure(backend, num_nodes) for num_nodes in sizes]


def _measure(backend: str, num_nodes: int) -> Cost:
    chain = Chain(num_nodes, device_of(backend))
    chain.step()
    first = Chain(1, device_of(backend))
    audit(first.step, vary=first.vary, backend=backend)  # what is loaded on first use is not counted
    capture(first.step, backend=backend)
    graphs: list[CapturedGraph] = []
    pools = [new_pool(backend), new_pool(backend)]

    def capture_anew() -> None:
        graphs.append(capture(chain.step, backend=backend, pool=pools[len(graphs)]))

    capture_s = _better_of_two(backend, capture_anew)
    replays_s = _better_of_two(backend, lambda: list(map(CapturedGraph.replay, [graphs[0]] * 2)))
    pool_bytes = pools[0].num_bytes
    graphs.clear()
    pools.clear()
    taken: list[int] = []

    def audit_once() -> None:
        with _most_memory(backend, taken):
            audit(chain.step, vary=chain.vary, backend=backend)

    audit_s = _better_of_two(backend, audit_once, before=chain.step)
    return Cost(backend, num_nodes, capture_s, replays_s, audit_s, pool_bytes, max(taken))


def _better_of_two(
    backend: str, work: Callable[[], object], before: Callable[[], object] = lambda: None
) -> float:
    """Seconds. What is left over from other graphs is gone when it begins; then `before` is done."""

    def once() -> float:
        gc.collect()
        if backend == "cuda":
            torch.cuda.empty_cache()
        before()
        start = time.perf_counter()
        work()
        if backend == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return min(once(), once())


@contextmanager
def _most_memory(backend: str, found: list[int]) -> Iterator[None]:
    """Append the most that is taken inside beyond what was taken before, of the device or the process."""
    if backend == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        yield
        found.append(torch.cuda.max_memory_reserved() - before)
        return
    process, over = psutil.Process(), threading.Event()
    before = process.memory_info().rss
    found.append(0)

    def watch() -> None:
        while not over.wait(0.02):
            found[-1] = max(found[-1], process.memory_info().rss - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
