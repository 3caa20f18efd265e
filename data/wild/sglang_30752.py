"""With padding of batches switched off, decoding ran eagerly for every batch size, also for those that had
been captured. Whether a graph can run is looked up by the number of requests; graphs are stored under a
shape key that holds it among other things, so that nothing is ever found. Proposed repair, made by another
change in the end (#31273): look up by the key that graphs are stored under.
"""

from types import SimpleNamespace
from typing import NamedTuple

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/30752"
MECHANISM = "silent-eager"
SYMPTOM = "speed"
CAUSE = "self.bs"
LINE = "graph_key = self.make_graph_key(self.bs) if self.fixed else self.bs"
EXECUTORS = ("emulated", "cuda")

MAX_BS, HIDDEN, CAPTURE_BS = 4, 3, (1, 2, 4)


class ShapeKey(NamedTuple):
    size: int
    stream_idx: int | None


class CudaGraphRunner:
    """Graphs for some batch sizes, without padding."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.bs = fixed, 3
        backend = "cuda" if device.type == "cuda" else "emulated"
        pool = new_pool(backend)
        self.hidden = torch.ones(MAX_BS, HIDDEN, device=device)
        self.graphs = {}
        for bs in CAPTURE_BS:
            self.forward(bs)
            graph = capture(lambda bs=bs: self.forward(bs), backend=backend, pool=pool)
            self.graphs[self.make_graph_key(bs)] = graph

    def make_graph_key(self, bs: int) -> ShapeKey:
        return ShapeKey(bs, None)

    def forward(self, bs: int) -> torch.Tensor:
        return torch.softmax(self.hidden[:bs] * 3, 1).cumsum(1)

    def execute(self) -> torch.Tensor:
        graph_key = self.make_graph_key(self.bs) if self.fixed else self.bs
        if graph_key not in self.graphs:
            return self.forward(self.bs)
        self.graphs[graph_key].replay()
        return self.graphs[graph_key].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = CudaGraphRunner(fixed, device)
    sizes, numbers = iter((2, 3, 4, 1) * 4), torch.Generator().manual_seed(0)

    def vary() -> None:
        runner.bs = next(sizes)
        runner.hidden.copy_(torch.rand(MAX_BS, HIDDEN, generator=numbers))

    return SimpleNamespace(
        step=runner.execute,
        eager=lambda: runner.forward(runner.bs),
        own_graphs=True,
        vary=vary,
        runner=runner,
    )
