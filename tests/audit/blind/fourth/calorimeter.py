"""Clustering scores for the hits of a calorimeter: events of changing size in buckets of fixed width."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LARGEST, FEATURES, WIDTH = 32, 5, 12
BUCKETS = (8, 16, 32)


def bucket(count):
    return next(size for size in BUCKETS if size >= count)


class Event:
    """Hits of the present event at the front of a buffer; what lies behind is of earlier ones."""

    def __init__(self):
        self.hits = torch.zeros(LARGEST, FEATURES, device=DEVICE)
        self.real = torch.zeros(LARGEST, dtype=torch.bool, device=DEVICE)
        self.count = 11
        self.real[: self.count] = True

    def load(self, hits):
        self.count = len(hits)
        self.hits[: self.count].copy_(hits)
        self.real.zero_()
        self.real[: self.count] = True

    def view(self):
        width = bucket(self.count)
        return self.hits[:width], self.real[:width]


class SetNorm(nn.Module):
    """Normalises over all hits of an event at once."""

    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x, real):
        weight = real.to(x.dtype).unsqueeze(-1)
        total = weight.sum()
        mean = (x * weight).sum(0) / total
        spread = ((x - mean).square() * weight).sum(0) / total
        return self.scale * (x - mean) * torch.rsqrt(spread + 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = SetNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, real):
        q, k, v = self.qkv(self.norm(x, real)).chunk(3, dim=-1)
        scores = (q @ k.T / WIDTH**0.5).masked_fill(~real, float("-inf"))
        return x + scores.softmax(-1) @ v


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        gen = torch.Generator().manual_seed(110)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.4)

    def forward(self, hits, real):
        x = self.enter(hits)
        for block in self.blocks:
            x = block(x, real)
        return self.leave(x)


event = Event()
scorer = Scorer().to(DEVICE).eval()
beam = torch.Generator().manual_seed(111)


@torch.no_grad()
def step():
    return scorer(*event.view())


def rows():
    return event.count


def vary():
    count = int(torch.randint(9, 17, (), generator=beam))
    event.load(torch.randn(count, FEATURES, generator=beam))
