"""Cross-encoder reranker with two activation buffers used in turn by the blocks."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DOCS, DIM = 5, 12


class Activations:
    def __init__(self, shape):
        self.src = torch.zeros(shape, device=DEVICE)
        self.dst = torch.zeros(shape, device=DEVICE)

    @contextmanager
    def turn(self):
        yield self.src, self.dst
        self.src, self.dst = self.dst, self.src


class Mixer(nn.Module):
    def __init__(self, across):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.across = across
        size = DOCS if across else DIM
        self.lin = nn.Linear(size, size)

    def forward(self, x):
        y = self.norm(x)
        return x + F.gelu(self.lin(y.T).T if self.across else self.lin(y))


class Reranker(nn.Module):
    LAYERS = 2

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(self.LAYERS):
            self.blocks.append(Mixer(across=True))
            self.blocks.append(Mixer(across=False))
        self.score = nn.Linear(DIM, 1)

    def forward(self, acts):
        for block in self.blocks:
            with acts.turn() as (src, dst):
                dst.copy_(block(src))
        return self.score(acts.src).squeeze(-1)


class Service:
    def __init__(self):
        torch.manual_seed(24)
        self.model = Reranker().to(DEVICE).eval()
        self.acts = Activations((DOCS, DIM))
        self.gen = torch.Generator().manual_seed(53)
        self.receive()

    def receive(self):
        """Query and documents arrive already embedded."""
        query = torch.randn(1, DIM, generator=self.gen)
        docs = torch.randn(DOCS, DIM, generator=self.gen)
        self.acts.src.copy_(query * docs + docs)


service = Service()


@torch.no_grad()
def step():
    scores = service.model(service.acts)
    return {"scores": scores, "best": scores.argmax()}


def vary():
    service.receive()
