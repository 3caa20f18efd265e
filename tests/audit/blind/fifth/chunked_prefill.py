"""Chunked prefill: prompts are uploaded whole into a token store, then consumed CHUNK at a time.

The store starts small, since most prompts are short, and doubles for a prompt that does not fit.
"""

import math

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, DIM, CHUNK = 40, 12, 8


class TokenStore:
    def __init__(self, capacity):
        self._ids = torch.zeros(capacity, dtype=torch.long, device=DEVICE)
        self._outgrown = []  # released once uploads in flight are over
        self.length = torch.zeros((), dtype=torch.long, device=DEVICE)

    @property
    def capacity(self):
        return self._ids.numel()

    def upload(self, prompt):
        need = prompt.numel()
        if need > self.capacity:
            size = 2 ** math.ceil(math.log2(need))
            self._outgrown.append(self._ids)
            self._ids = self._ids.new_zeros(size)
        self._ids[:need].copy_(prompt)
        self.length.fill_(need)

    def gather(self, index):
        inside = index < self.length
        ids = self._ids.index_select(0, torch.where(inside, index, torch.zeros_like(index)))
        return ids, inside


class Scheduler:
    """Hands out (length, first token of the chunk) pairs in arrival order."""

    QUEUE = [(12, 0), (12, 8), (16, 0), (27, 0), (27, 8), (10, 0), (15, 8)]

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.turn = 0
        self.prompt = None

    def pop(self):
        n, start = self.QUEUE[self.turn % len(self.QUEUE)]
        self.turn += 1
        if start == 0 or self.prompt is None:
            self.prompt = torch.randint(VOCAB, (n,), generator=self.gen)
        return self.prompt[:n], start


class Prefiller:
    def __init__(self):
        gen = torch.Generator().manual_seed(14)
        self.embed = torch.randn(VOCAB, DIM, generator=gen).to(DEVICE)
        self.w = (torch.randn(DIM, DIM, generator=gen) * 0.4).to(DEVICE)
        self.store = TokenStore(16)
        self.start = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.lane = torch.arange(CHUNK, device=DEVICE)
        self.scheduler = Scheduler(29)
        self.next_chunk()

    def next_chunk(self):
        prompt, start = self.scheduler.pop()
        self.store.upload(prompt)
        self.start.fill_(start)

    def forward(self):
        ids, inside = self.store.gather(self.start + self.lane)
        x = self.embed[ids] * inside.unsqueeze(-1)
        return F.gelu(torch.cumsum(x, 0) @ self.w) * inside.unsqueeze(-1)


prefiller = Prefiller()


@torch.no_grad()
def step():
    return prefiller.forward()


def vary():
    prefiller.next_chunk()
