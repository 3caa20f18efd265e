"""Sliding-window decode over an int8 ring buffer with a scale for each entry."""

from types import SimpleNamespace

import torch

BATCH, WINDOW, DIM = 3, 5, 8


def quantise(x):
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127.0
    return (x / scale).round().clamp(-127, 127).to(torch.int8), scale


class Ring:
    """The last WINDOW keys and values of every row."""

    def __init__(self):
        self.k = torch.zeros(BATCH, WINDOW, DIM, dtype=torch.int8)
        self.v = torch.zeros(BATCH, WINDOW, DIM, dtype=torch.int8)
        self.k_scale = torch.ones(BATCH, WINDOW, 1)
        self.v_scale = torch.ones(BATCH, WINDOW, 1)
        self.seen = 0  # tokens so far, kept by the scheduler
        self.seen_dev = torch.zeros((), dtype=torch.long)

    def advance(self):
        self.seen += 1
        self.seen_dev.fill_(self.seen)

    def write(self, k, v):
        at = self.seen % WINDOW
        for data, scales, fresh in ((self.k, self.k_scale, k), (self.v, self.v_scale, v)):
            packed, scale = quantise(fresh)
            data[:, at] = packed
            scales[:, at] = scale

    def read(self):
        return self.k.float() * self.k_scale, self.v.float() * self.v_scale

    def valid(self):
        return torch.arange(WINDOW) <= self.seen_dev


class WindowDecoder:
    def __init__(self, seed=37):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.w_qkv = torch.randn(DIM, 3 * DIM, generator=g) / DIM**0.5
        self.w_out = torch.randn(DIM, DIM, generator=g) / DIM**0.5
        self.ring = Ring()
        self.x = torch.randn(BATCH, DIM, generator=g)
        self.log = []

    def vary(self):
        self.ring.advance()
        self.x.copy_(torch.randn(BATCH, DIM, generator=self.gen))
        self.log.append(self.ring.seen)

    def step(self):
        q, k, v = (self.x @ self.w_qkv).chunk(3, dim=-1)
        self.ring.write(k, v)
        keys, values = self.ring.read()
        scores = torch.einsum("bd,bwd->bw", q, keys) / DIM**0.5
        scores = scores.masked_fill(~self.ring.valid(), float("-inf"))
        ctx = torch.einsum("bw,bwd->bd", scores.softmax(-1), values)
        return ctx @ self.w_out + self.x


def make():
    decoder = WindowDecoder()
    return SimpleNamespace(step=decoder.step, vary=decoder.vary)
