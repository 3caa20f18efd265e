"""Decode step of a small paged-attention engine with continuous batching."""

from collections import deque
from types import SimpleNamespace

import torch

MAX_BATCH, HEADS, DIM = 6, 2, 8
WIDTH = HEADS * DIM
BLOCK, NUM_BLOCKS, MAX_BLOCKS = 4, 64, 12
TRASH = NUM_BLOCKS * BLOCK  # one row behind the last block; in no block table


class Request:
    def __init__(self, rid, length, blocks):
        self.rid, self.length, self.blocks = rid, length, blocks


class PagedDecoder:
    def __init__(self, seed=7):
        self.gen = torch.Generator().manual_seed(seed)
        self.w_qkv = self.rand(WIDTH, 3 * WIDTH) / WIDTH**0.5
        self.w_out = self.rand(WIDTH, WIDTH) / WIDTH**0.5
        self.k_pool = torch.zeros(TRASH + 1, HEADS, DIM)
        self.v_pool = torch.zeros(TRASH + 1, HEADS, DIM)
        self.hidden = torch.zeros(MAX_BATCH, WIDTH)
        self.slots = torch.full((MAX_BATCH,), TRASH)
        self.tables = torch.zeros(MAX_BATCH, MAX_BLOCKS, dtype=torch.long)
        self.lens = torch.ones(MAX_BATCH, dtype=torch.long)
        self.in_block = torch.arange(BLOCK)
        self.free = deque(range(NUM_BLOCKS))
        self.running, self.tick = [], 0

    def rand(self, *shape):
        return torch.randn(*shape, generator=self.gen)

    def admit(self, prompt_len):
        blocks = [self.free.popleft() for _ in range(-(-prompt_len // BLOCK))]
        for p in range(prompt_len):
            slot = blocks[p // BLOCK] * BLOCK + p % BLOCK
            self.k_pool[slot].copy_(self.rand(HEADS, DIM))
            self.v_pool[slot].copy_(self.rand(HEADS, DIM))
        self.running.append(Request(self.tick, prompt_len, blocks))

    def schedule(self):
        """One scheduler tick: arrivals, departures, then one new token for each."""
        if self.tick % 2 == 0 and len(self.running) < MAX_BATCH - 1:
            self.admit(3 + self.tick % 5)
        if self.tick % 5 == 4:
            self.free.extend(self.running.pop(1).blocks)
        slots = []
        for row, req in enumerate(self.running):
            if req.length == len(req.blocks) * BLOCK:
                req.blocks.append(self.free.popleft())
            slots.append(req.blocks[req.length // BLOCK] * BLOCK + req.length % BLOCK)
            req.length += 1
            self.tables[row, : len(req.blocks)].copy_(torch.tensor(req.blocks))
        n = len(self.running)
        self.hidden[:n].copy_(self.rand(n, WIDTH))
        self.slots[:n].copy_(torch.tensor(slots))
        self.slots[n:].fill_(TRASH)
        self.lens[:n].copy_(torch.tensor([r.length for r in self.running]))
        self.lens[n:].fill_(1)
        self.tick += 1

    def step(self):
        qkv = (self.hidden @ self.w_qkv).view(MAX_BATCH, 3, HEADS, DIM)
        q, k, v = qkv.unbind(1)
        self.k_pool.index_put_((self.slots,), k)
        self.v_pool.index_put_((self.slots,), v)
        where = (self.tables[:, :, None] * BLOCK + self.in_block).flatten(1)
        keys, values = self.k_pool[where], self.v_pool[where]
        scores = torch.einsum("bhd,blhd->bhl", q, keys) / DIM**0.5
        live = torch.arange(where.shape[1]) < self.lens[:, None]
        scores = scores.masked_fill(~live[:, None], float("-inf"))
        values = torch.where(live[..., None, None], values, torch.zeros_like(values))
        ctx = torch.einsum("bhl,blhd->bhd", scores.softmax(-1), values)
        return ctx.reshape(MAX_BATCH, WIDTH) @ self.w_out


def make():
    engine = PagedDecoder()
    engine.admit(5)
    engine.admit(6)
    engine.schedule()
    return SimpleNamespace(step=engine.step, vary=engine.schedule, rows=lambda: len(engine.running))
