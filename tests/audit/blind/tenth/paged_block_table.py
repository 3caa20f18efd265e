"""Paged attention: block tables are kept by the scheduler as a numpy array."""

from types import SimpleNamespace

import numpy as np
import torch

BATCH, DIM, BLOCK, PER_ROW = 4, 8, 4, 4
BLOCKS = 1 + BATCH * PER_ROW  # block 0 takes what padding writes
FULL = BLOCK * PER_ROW


class PagedDecode:
    def __init__(self, seed=107):
        self.gen = torch.Generator().manual_seed(seed)
        self.kv = torch.zeros(BLOCKS, BLOCK, DIM)
        self.x = torch.zeros(BATCH, DIM)
        self.lens = torch.ones(BATCH, dtype=torch.long)
        self.count = torch.zeros((), dtype=torch.long)
        self.free = list(range(1, BLOCKS))
        self.table = np.zeros((BATCH, PER_ROW), dtype=np.int64)
        self.lengths = []
        for length in (4, 5, 6):
            self.admit(length)
        self.table_dev = torch.from_numpy(self.table)  # one memory, pinned

    def publish(self, table):
        self.table = table
        self.table_dev = torch.from_numpy(self.table)

    def admit(self, length):
        row = len(self.lengths)
        for i in range(-(-length // BLOCK)):
            self.table[row, i] = self.free.pop(0)
        self.lengths.append(length)

    def vary(self):
        table = self.table.copy()  # the scheduler plans on a copy
        for row, length in enumerate(self.lengths):
            if length == FULL:  # the request ends, another takes its row
                self.free.extend(table[row, 1:].tolist())
                table[row, 1:] = 0
                length = 0
            elif length % BLOCK == 0:
                table[row, length // BLOCK] = self.free.pop(0)
            self.lengths[row] = length + 1
        if (table != self.table).any():
            self.publish(table)
        if self.lengths[0] == 11 and len(self.lengths) < BATCH:
            self.admit(1)
        live = len(self.lengths)
        self.count.fill_(live)
        self.lens[:live].copy_(torch.tensor(self.lengths))
        self.x[:live].copy_(torch.randn(live, DIM, generator=self.gen))

    def step(self):
        table = self.table_dev
        at = (self.lens - 1).clamp(0, FULL - 1)
        slot = table.gather(1, (at // BLOCK)[:, None])[:, 0] * BLOCK + at % BLOCK
        real = torch.arange(BATCH) < self.count
        slot = torch.where(real, slot, 0)
        new = torch.where(real[:, None], self.x, 0.0)
        self.kv.view(-1, DIM).index_copy_(0, slot, new)
        keys = self.kv[table].view(BATCH, FULL, DIM)
        score = torch.einsum("bd,btd->bt", self.x, keys)
        score = score.masked_fill(torch.arange(FULL) >= self.lens[:, None], -1e9)
        return torch.einsum("bt,btd->bd", score.softmax(-1), keys)


def make():
    decode = PagedDecode()
    decode.vary()
    return SimpleNamespace(step=decode.step, vary=decode.vary, rows=lambda: len(decode.lengths))
