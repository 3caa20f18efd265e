"""Sliding-window decode: keys and values go round a ring of WINDOW entries."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WINDOW, DIM, BATCH = 4, 8, 2


@dataclass
class Usage:
    tokens: int = 0
    wraps: int = 0

    def note(self):
        self.tokens += 1
        if self.tokens % WINDOW == 0:
            self.wraps += 1


class RingCache:
    def __init__(self):
        self.k = torch.zeros(BATCH, WINDOW, DIM, device=DEVICE)
        self.v = torch.zeros(BATCH, WINDOW, DIM, device=DEVICE)
        self.head = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.filled = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.usage = Usage()

    def push(self, k, v):
        self.k.index_copy_(1, self.head, k.unsqueeze(1))
        self.v.index_copy_(1, self.head, v.unsqueeze(1))
        self.head.add_(1).remainder_(WINDOW)
        self.filled.add_(1).clamp_(max=WINDOW)
        self.usage.note()

    @property
    def full(self):
        return self.usage.tokens >= WINDOW

    def view(self):
        live = torch.arange(WINDOW, device=DEVICE) < self.filled
        return self.k, self.v, live

    def clear(self):
        for t in (self.k, self.v, self.head, self.filled):
            t.zero_()
        self.usage = Usage()


class Decoder:
    def __init__(self):
        gen = torch.Generator().manual_seed(16)
        self.w = [(torch.randn(DIM, DIM, generator=gen) * 0.5).to(DEVICE) for _ in range(3)]
        self.cache = RingCache()
        self.x = torch.zeros(BATCH, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(37)
        self.next_token()

    def next_token(self):
        self.x.copy_(torch.randn(BATCH, DIM, generator=self.gen))

    def forward(self):
        q, k, v = (self.x @ w for w in self.w)
        self.cache.push(k, v)
        keys, values, live = self.cache.view()
        att = torch.einsum("bd,bwd->bw", q, keys) / DIM**0.5
        if not self.cache.full:
            # the unused entries of a young ring must not take part
            att = att.masked_fill(~live, float("-inf"))
        else:
            att = torch.where(live, att, float("-inf"))
        return torch.einsum("bw,bwd->bd", att.softmax(-1), values)


decoder = Decoder()


def reset():
    decoder.cache.clear()


@torch.no_grad()
def step():
    return decoder.forward()


def vary():
    decoder.next_token()
