"""A pooling model in CUDA graphs by batch bucket and pooling kind; weights are requantised now and then."""

from collections import OrderedDict

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BUCKETS = (2, 4, 8)
TOKENS, DIM, MAX_BATCH, KEPT = 5, 8, 10, 3


class PoolingRunner:
    def __init__(self, enforce_eager: bool = False) -> None:
        self.enforce_eager = enforce_eager
        self.master = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(81)).to(DEVICE)
        self.hidden = torch.zeros(MAX_BATCH, TOKENS, DIM, device=DEVICE)
        self.lengths = torch.ones(MAX_BATCH, dtype=torch.long, device=DEVICE)
        self.size = 1
        self.kind = "mean"
        self._graphs: OrderedDict[tuple[int, str], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = OrderedDict()
        self.requantise(8)

    def requantise(self, bits: int) -> None:
        self.steps = self.master.abs().amax(dim=0) / (2 ** (bits - 1) - 1)
        self.weight = (self.master / self.steps).round().to(torch.int8)
        self._graphs.clear()

    def load(self, hidden: torch.Tensor, lengths: torch.Tensor, kind: str) -> None:
        self.size = hidden.shape[0]
        self.hidden[: self.size].copy_(hidden)
        self.lengths[: self.size].copy_(lengths)
        self.kind = kind

    def forward(self, rows: int) -> torch.Tensor:
        hidden = self.hidden[:rows] @ (self.weight.float() * self.steps)
        past = torch.arange(TOKENS, device=DEVICE) >= self.lengths[:rows, None]
        if self.kind == "mean":
            pooled = hidden.masked_fill(past[..., None], 0.0).sum(1) / self.lengths[:rows, None]
        else:
            pooled = hidden.masked_fill(past[..., None], float("-inf")).amax(1)
        return pooled / pooled.norm(dim=-1, keepdim=True).clamp_min(1e-6)

    def _graph(self, bucket: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        key = bucket, self.kind
        if key not in self._graphs:
            self.forward(bucket)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.forward(bucket)
            self._graphs[key] = graph, out
            while len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def run(self) -> torch.Tensor:
        bucket = next((b for b in BUCKETS if b >= self.size), None)
        if self.enforce_eager or bucket is None:
            return self.forward(self.size)
        graph, out = self._graph(bucket)
        graph.replay()
        return out[: self.size]


runner = PoolingRunner()
served = 0
prompts = torch.Generator().manual_seed(82)


def vary() -> None:
    global served
    served += 1
    if served % 4 == 0:
        runner.requantise(bits=4 if served % 8 else 3)
    size = (2, 3, 1, 7, 4, 10, 2)[served % 7]
    lengths = torch.randint(1, TOKENS + 1, (size,), generator=prompts)
    runner.load(torch.randn(size, TOKENS, DIM, generator=prompts), lengths, ("mean", "max")[served // 2 % 2])


vary()


def step() -> torch.Tensor:
    return runner.run()


def rows() -> int:
    return runner.size
