"""What graphs and sweeps take as they grow, over decades of sizes, with a verdict beside each time.

`floor`: chains of kernels that do next to nothing, so that what is left is the price of a node.
`growth`: capture, replay and audit of a chain of ops. On the emulator these are the price of the tool on a
CPU, and no speed of a GPU follows from them.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from mrv2lab.audit.driver import audit
from mrv2lab.audit.report import AuditReport
from mrv2lab.graphs import CapturedGraph, capture, device_of, resolve
from mrv2lab.graphs.cuda import CudaGraph
from mrv2lab.kernels.dual import DualKernel
from mrv2lab.kernels.tiny import add_one_early_kernel, add_one_kernel, empty_kernel
from mrv2lab.results import RECORDS, Kept, Latency, Rung, Strict, Verdict
from mrv2lab.verdict import judge, relative_error

What = Literal["floor", "growth", "sweep"]

_TO_10_000 = (10, 30, 100, 300, 1_000, 3_000, 10_000)
SIZES: dict[str, tuple[int, ...]] = {"emulated": _TO_10_000, "cuda": (*_TO_10_000, 30_000, 100_000)}
"""Nodes, by executor."""

MOST_AUDITED = 30_000
"""Nodes of the largest graph that is audited: five times, and once before."""

RUNS = 5
"""How often each is timed, after a first time that does not count."""

DECADES = 1
"""How many decades of sizes, the last ones, say how a time grows."""

_WIDTH = 1024  # elements of each tensor


class Point(Strict):
    """One size of one chain. A time is from the call until the device has done the work; on the emulator the
    CPU time of that.
    """

    chain: str
    num_nodes: int = Field(gt=0)  # that the graph is to have; of a sweep its runs
    verdict: Verdict  # of a replay on changed inputs, against an eager run on the same
    num_findings: int | None = None  # of the audit that was timed
    ms: dict[str, Latency]
    device_bytes: int | None = None  # what the device had less of, once the graph was there and had run

    @property
    def is_right(self) -> bool:
        """Whether its times count: the graph does what it should, and the audit says no other."""
        return self.verdict == "correct" and not self.num_findings


class Bench(Kept):
    """All sizes, timed on one machine by one command."""

    what: What
    rung: Rung
    points: list[Point] = Field(min_length=1)

    @property
    def noun(self) -> str:
        """What there is more and more of."""
        return "run" if self.what == "sweep" else "node"

    def series(self) -> dict[tuple[str, str], list[Point]]:
        """For each chain and each thing timed on it its points, by size."""
        by_size = sorted(self.points, key=lambda point: point.num_nodes)
        keys = dict.fromkeys((point.chain, name) for point in self.points for name in point.ms)
        return {(c, name): [p for p in by_size if p.chain == c and name in p.ms] for c, name in keys}


def load(path: Path) -> Bench:
    """Read what was timed. RecordError: not there, damaged, or not such a record."""
    return Bench.read(path, "times of growing graphs", f"make it with mrv2lab bench, below {RECORDS.name}")


def exponent(points: Sequence[Point], name: str) -> float | None:
    """How a time grows over the last `DECADES`: 1 is in proportion to the nodes, 2 with their square.

    The slope of its logarithm over that of the nodes, by least squares, over the points that are right; None
    where these are fewer than three.
    """
    right = [point for point in points if point.is_right]
    last = max((point.num_nodes for point in right), default=0) / 10**DECADES
    fitted = [(point.num_nodes, point.ms[name].median) for point in right if point.num_nodes >= last]
    if len(fitted) < 3:
        return None
    nodes, times = np.log(np.array(fitted)).T
    return float(np.polyfit(nodes, times, 1)[0])


# ---- what is timed ----


class Chain:
    """A step of many small ops over one buffer, none of whose results is kept."""

    def __init__(self, num_nodes: int, device: torch.device):
        self.num_nodes = num_nodes
        self.x = torch.ones(_WIDTH, device=device)

    def step(self) -> torch.Tensor:
        y = self.x
        for _ in range(self.num_nodes):
            y = y + 1.0
        return y

    def vary(self) -> None:
        self.x.add_(1.0)


class Launches:
    """A step of launches of one kernel, each over what the one before it left.

    Args:
        how: options of Triton's for each launch.
    """

    def __init__(self, kernel: DualKernel, num_nodes: int, device: torch.device, **how: bool):
        self.kernel, self.num_nodes, self.how = kernel, num_nodes, how
        self.x = torch.ones(_WIDTH, device=device)

    def step(self) -> torch.Tensor:
        for _ in range(self.num_nodes):
            self.kernel[(1,)](self.x, WIDTH=_WIDTH, **self.how)
        return self.x


def growth(backend: str = "auto") -> Iterator[Point]:
    """Time capture (its nodes read), replay and audit. BadInput: as `resolve`."""
    backend = resolve(backend)
    return (_growth(backend, num_nodes) for num_nodes in SIZES[backend] if num_nodes <= MOST_AUDITED)


def _growth(backend: str, num_nodes: int) -> Point:
    chain = Chain(num_nodes, device_of(backend))
    graphs: list[CapturedGraph] = []
    reports: list[AuditReport] = []

    def capture_anew() -> None:
        graphs.append(capture(chain.step, backend=backend))

    def audit_again() -> None:
        reports.append(audit(chain.step, vary=chain.vary, backend=backend))

    chain.step()
    ms = {
        "capture": timed(backend, capture_anew, before=graphs.clear),
        "replay": timed(backend, lambda: graphs[0].replay(), _calls(num_nodes)),
        "audit": timed(backend, audit_again),
    }
    num_findings = max(len(report.findings) for report in reports)
    verdict = judged(chain, graphs[0])
    return Point(chain="ops", num_nodes=num_nodes, verdict=verdict, num_findings=num_findings, ms=ms)


def floor(backend: str = "cuda") -> Iterator[Point]:
    """Time launches from Python, instantiation and replay of kernels that do nothing, and next to nothing;
    from Hopper on (compute capability 9.0) also of ones that are launched before those in front have ended.

    Of an empty kernel a verdict says no more than that all nodes are there. BadInput: as `resolve`.
    """
    backend = resolve(backend)
    chains = {
        "empty": partial(Launches, empty_kernel),
        "add one": partial(Launches, add_one_kernel),
    }
    if backend == "cuda" and torch.cuda.get_device_capability() >= (9, 0):
        chains["add one, early"] = partial(Launches, add_one_early_kernel, launch_pdl=True)
    return (
        _floor(backend, name, make(num_nodes, device_of(backend)))
        for name, make in chains.items()
        for num_nodes in SIZES[backend]
    )


def _floor(backend: str, name: str, chain: Launches) -> Point:
    num_nodes = chain.num_nodes
    ms = {"eager": timed(backend, chain.step, _calls(num_nodes))}
    before = _free_bytes(backend)
    graph = capture(chain.step, backend=backend)
    graph.replay()
    taken = before - _free_bytes(backend)
    if isinstance(graph, CudaGraph):
        ms["instantiate"] = timed(backend, graph._graph.instantiate)  # again, in place of the one before
    ms["replay"] = timed(backend, graph.replay, _calls(num_nodes))
    return Point(
        chain=name, num_nodes=num_nodes, verdict=judged(chain, graph), ms=ms,
        device_bytes=taken if backend == "cuda" else None,
    )  # fmt: skip


def timed(
    backend: str,
    work: Callable[[], object],
    calls: int = 1,
    before: Callable[[], object] = lambda: None,
    clock: Callable[[], float] | None = None,
) -> Latency:
    """Time some work `RUNS` times, what was left from before collected each time.

    Args:
        calls: in each run, one after the other has ended; their mean counts. For what ends too soon.
        clock: seconds. Without one: on the emulator, which works where others do too, what the process has
            had of the CPU.
    """
    clock = clock or (time.perf_counter if backend == "cuda" else time.process_time)
    taken = []
    for _ in range(RUNS + 1):
        before()
        gc.collect()
        _wait(backend)
        start = clock()
        for _ in range(calls):
            work()
            _wait(backend)
        taken.append(1e3 * (clock() - start) / calls)
    median, p20, p80 = np.percentile(taken[1:], [50, 20, 80])
    return Latency(median=median, p20=p20, p80=p80)


def _calls(num_nodes: int) -> int:
    return max(1, 1_000 // num_nodes)


def judged(steps: Chain | Launches, graph: CapturedGraph) -> Verdict:
    """Replay on inputs far from those of the capture, and compare with an eager run on the same."""

    def replay() -> Any:
        graph.replay()
        return graph.outputs

    results = []
    for run in (steps.step, replay):
        steps.x.fill_(1.0 - steps.num_nodes)  # so that one addition more or less is half or all of the result
        results.append(run().clone())
    if len(graph.nodes) != steps.num_nodes:
        return "wrong"
    return judge([relative_error(results[1], results[0])], [])


def _wait(backend: str) -> None:
    if backend == "cuda":
        torch.cuda.synchronize()


def _free_bytes(backend: str) -> int:
    """What the device has left, nothing being kept for later."""
    if backend != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


MEASURED: dict[What, Callable[[str], Iterator[Point]]] = {"floor": floor, "growth": growth}
"""What can be timed, each on an executor."""
