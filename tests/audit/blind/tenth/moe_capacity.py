"""Mixture of experts: tokens are scattered into a buffer of a capacity for each expert."""

from types import SimpleNamespace

import numpy as np
import torch

TOKENS, EXPERTS, DIM = 8, 3, 8
LOADS = [
    [0, 1, 2, 0, 1, 2],
    [2, 1, 0, 0],
    [1, 1, 0, 2, 0, 2],
    [2, 0, 1],
    [1, 1, 1, 0, 1, 2, 1],
    [0, 0, 0, 0, 0],
    [2, 1, 0, 2, 2, 2, 2, 2],
]


class MoeLayer:
    def __init__(self, seed=103):
        self.gen = torch.Generator().manual_seed(seed)
        self.experts = torch.randn(EXPERTS, DIM, DIM, generator=self.gen) / DIM**0.5
        self.x = torch.zeros(TOKENS, DIM)
        self.expert = torch.zeros(TOKENS, dtype=torch.long)
        self.capacity = 1
        self.live, self.tick = 0, 0

    def vary(self):
        load = LOADS[self.tick % len(LOADS)]
        self.tick += 1
        self.live = len(load)
        counts = np.bincount(load, minlength=EXPERTS)
        self.capacity = int(counts.max())
        self.expert[: self.live].copy_(torch.tensor(load))
        self.x[: self.live].copy_(torch.randn(self.live, DIM, generator=self.gen))

    def buffer_size(self):
        return self.capacity

    def step(self):
        size = self.buffer_size()
        onehot = torch.nn.functional.one_hot(self.expert, EXPERTS)
        place = (onehot.cumsum(0) * onehot).sum(1) - 1
        keep = (place < size)[:, None]
        flat = self.expert * size + place.clamp(max=size - 1)
        buffer = torch.zeros(EXPERTS * size, DIM)
        buffer.index_add_(0, flat, torch.where(keep, self.x, 0.0))
        done = torch.bmm(buffer.view(EXPERTS, size, DIM), self.experts)
        return self.x + torch.where(keep, done.view(-1, DIM)[flat], 0.0)


def make():
    layer = MoeLayer()
    layer.vary()
    return SimpleNamespace(step=layer.step, vary=layer.vary, rows=lambda: layer.live)
