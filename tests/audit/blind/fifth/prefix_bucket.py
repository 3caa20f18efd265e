"""Prefix-cached attention over padded lengths: the batch's longest prompt picks the padded size."""

from bisect import bisect_left
from functools import lru_cache

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZES = (8, 16, 32, 64)
BATCH, DIM = 3, 8


def padded_size(n):
    return SIZES[bisect_left(SIZES, n)]


@lru_cache(maxsize=None)
def causal_bias(size):
    bias = torch.full((size, size), float("-inf")).triu(1)
    return bias.to(DEVICE)


@lru_cache(maxsize=None)
def slots(size):
    return torch.arange(size, device=DEVICE)


class PrefixBatch:
    def __init__(self):
        self.tokens = torch.zeros(BATCH, SIZES[-1], DIM, device=DEVICE)
        self.lengths = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.longest = 0

    def set(self, rows):
        self.longest = max(len(r) for r in rows)
        self.tokens.zero_()
        for i, row in enumerate(rows):
            self.tokens[i, : len(row)].copy_(row)
        self.lengths.copy_(torch.tensor([len(r) for r in rows]))


class Traffic:
    """Prompts of the service: a system prefix of 17 tokens and a question of at most 14."""

    PREFIX, QUESTION = 17, 14

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def draw(self):
        extra = torch.randint(1, self.QUESTION + 1, (BATCH,), generator=self.gen).tolist()
        return [torch.randn(self.PREFIX + n, DIM, generator=self.gen) for n in extra]


class Encoder:
    def __init__(self):
        gen = torch.Generator().manual_seed(22)
        self.w = (torch.randn(3, DIM, DIM, generator=gen) * 0.5).to(DEVICE)
        self.batch = PrefixBatch()
        self.traffic = Traffic(47)
        self.batch.set(self.traffic.draw())

    def forward(self):
        size = padded_size(self.batch.longest)
        x = self.batch.tokens[:, :size]
        q, k, v = (x @ w for w in self.w)
        valid = slots(size) < self.batch.lengths[:, None]
        att = q @ k.transpose(1, 2) / DIM**0.5 + causal_bias(size)
        att = att.masked_fill(~valid[:, None, :], float("-inf"))
        y = att.softmax(-1) @ v
        last = (self.batch.lengths - 1).view(-1, 1, 1).expand(-1, 1, DIM)
        return y.gather(1, last).squeeze(1)


encoder = Encoder()


@torch.no_grad()
def step():
    return encoder.forward()


def vary():
    encoder.batch.set(encoder.traffic.draw())
