from dataclasses import dataclass
from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"


@dataclass
class ScoringConfig:
    buckets: tuple[int, ...] = (4, 8)
    dim: int = 5
    temperature: float = 0.2


@dataclass
class Pairs:
    queries: torch.Tensor
    documents: torch.Tensor

    def __len__(self):
        return self.queries.shape[0]


class InBatchLoss:
    def __init__(self, config):
        self.config = config
        n = torch.arange(config.dim * config.dim, dtype=torch.float32)
        self.projection = torch.sin(n).view(config.dim, config.dim).to(DEVICE)

    def __call__(self, queries, documents):
        q = torch.nn.functional.normalize(queries @ self.projection, dim=-1)
        d = torch.nn.functional.normalize(documents @ self.projection + 0.1, dim=-1)
        similarity = q @ d.T / self.config.temperature
        return -torch.log_softmax(similarity, dim=-1).diagonal()


class Scorer:
    def __init__(self, config):
        self.config, self.loss = config, InBatchLoss(config)
        largest = max(config.buckets)
        self.queries = torch.zeros(largest, config.dim, device=DEVICE)
        self.documents = torch.zeros(largest, config.dim, device=DEVICE)
        self.graphs = {}
        self.pairs, self.turn = None, 0

    def capture(self, size):
        q, d = self.queries[:size], self.documents[:size]
        self.loss(q, d)
        return graphs.capture(lambda: self.loss(q, d), backend=BACKEND)

    def score(self):
        count = len(self.pairs)
        size = next(b for b in self.config.buckets if b >= count)
        self.queries[:count].copy_(self.pairs.queries)
        self.documents[:count].copy_(self.pairs.documents)
        if size not in self.graphs:
            self.graphs[size] = self.capture(size)
        self.graphs[size].replay()
        return self.graphs[size].outputs[:count]

    def eager(self):
        return self.loss(self.pairs.queries, self.pairs.documents)

    def receive(self):
        count = (3, 8, 4, 6)[self.turn % 4]
        self.turn += 1
        n = torch.arange(count * self.config.dim, dtype=torch.float32, device=DEVICE).view(count, -1)
        self.pairs = Pairs(torch.sin(n + self.turn), torch.cos(n * 0.5 * self.turn))


def make_engine():
    scorer = Scorer(ScoringConfig())
    return SimpleNamespace(
        step=scorer.score, vary=scorer.receive, eager=scorer.eager, reset=scorer.graphs.clear
    )
