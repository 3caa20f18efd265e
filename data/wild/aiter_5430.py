"""Captured GEMMs returned 1e30, infinities and NaN. Workspace and arrival counter of the split-K kernel are
cached by stream and made at the first miss, which falls into a capture: they come from the pool of the
graphs, on an address that an earlier graph has freed inside, and that graph's replays go on writing there.
Only the graph of the miss holds the zero-fill; a later one finds a counter that never says that all splits
have arrived. The repair allocates both apart from the pool.
"""

from functools import cache
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch

from mrv2lab import graphs

PROJECT = "aiter"
LINK = "https://github.com/ROCm/aiter/pull/5430"
MECHANISM = "cross-capture"
CAUSE = "semaphore"
LINE = "semaphore = split_buffers(stream)"
EXECUTORS = ("emulated", "cuda")

ROWS, SPLITS, DEPTH = 4, 4, 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend: Any = "cuda" if device.type == "cuda" else "emulated"
    a = torch.ones(ROWS, DEPTH, device=device)
    out = torch.zeros(ROWS, device=device)
    turn, turns = SimpleNamespace(number=0), cycle([1, 2, 0, 2, 0])

    @cache
    def split_buffers(stream: str) -> torch.Tensor:
        return torch.zeros(SPLITS, dtype=torch.int64, device=device)

    def norm() -> torch.Tensor:
        return (a * 3).sum(1)  # the product is freed inside of the graph

    def gemm() -> torch.Tensor:
        stream = "capture" if graphs.is_capturing() and not fixed else "default"
        semaphore = split_buffers(stream)
        semaphore[0] += SPLITS  # each split counts in
        has_arrived = semaphore[0] == SPLITS
        out.copy_(torch.where(has_arrived, a.view(ROWS, SPLITS, -1).sum(2).sum(1), out))
        semaphore.mul_(~has_arrived)  # the last one puts the counter back
        return out

    steps = [norm, gemm, gemm]  # of three batch sizes
    for run in steps:
        run()
    pool = graphs.new_pool(backend)
    captured = [graphs.capture(run, backend=backend, pool=pool) for run in steps]

    def step() -> torch.Tensor:
        captured[turn.number].replay()
        return captured[turn.number].outputs

    def vary() -> None:
        turn.number = next(turns)
        a.add_(1)

    return SimpleNamespace(
        step=step, own_graphs=True, eager=lambda: steps[turn.number](), vary=vary, turn=turn, requests=6
    )
