"""Decoding with classifier-free guidance, one CUDA graph for every padded batch size."""

from bisect import bisect_left

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BUCKETS = (4, 8)
DIM, VOCAB, MAX_BATCH = 8, 16, 12


class GuidedRunner:
    def __init__(self, enforce_eager: bool = False) -> None:
        gen = torch.Generator().manual_seed(23)
        self.head = torch.randn(DIM, VOCAB, generator=gen).to(DEVICE)
        self.prompted = torch.zeros(MAX_BATCH, DIM, device=DEVICE)
        self.unprompted = torch.zeros(MAX_BATCH, DIM, device=DEVICE)
        self.strength = torch.ones(MAX_BATCH, 1, device=DEVICE)
        self.enforce_eager = enforce_eager
        self.size = 0
        self.guided = False
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def load(self, prompted: torch.Tensor, unprompted: torch.Tensor, strength: float | None) -> None:
        self.size = prompted.shape[0]
        self.prompted[: self.size].copy_(prompted)
        self.unprompted[: self.size].copy_(unprompted)
        self.guided = strength is not None
        self.strength.fill_(strength or 1.0)

    def forward(self, rows: int) -> torch.Tensor:
        logits = self.prompted[:rows] @ self.head
        if self.guided:
            free = self.unprompted[:rows] @ self.head
            logits = free + self.strength[:rows] * (logits - free)
        return logits.log_softmax(-1)

    def _bucket(self) -> int | None:
        at = bisect_left(BUCKETS, self.size)
        return BUCKETS[at] if at < len(BUCKETS) else None

    def run(self) -> torch.Tensor:
        bucket = self._bucket()
        if self.enforce_eager or bucket is None:
            return self.forward(self.size)
        if bucket not in self._graphs:
            self.forward(bucket)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = self.forward(bucket)
            self._graphs[bucket] = graph, out
        graph, out = self._graphs[bucket]
        graph.replay()
        return out[: self.size]


ARRIVALS = ((3, None), (2, None), (7, 4.0), (4, 3.0), (11, 4.0), (6, None), (8, 2.5))
runner = GuidedRunner()
served = 0
prompts = torch.Generator().manual_seed(10)


def vary() -> None:
    global served
    size, strength = ARRIVALS[served % len(ARRIVALS)]
    served += 1
    runner.load(
        torch.randn(size, DIM, generator=prompts), torch.randn(size, DIM, generator=prompts), strength
    )


vary()


def step() -> torch.Tensor:
    return runner.run()


def rows() -> int:
    return runner.size
