"""Paged KV cache: a host-side block manager, a page table on the device.

Requests come and go; their blocks return to the free list and are handed out again.
"""

from collections import deque

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PAGE, PAGES, MAX_PAGES, ROWS, DIM = 4, 24, 5, 2, 8


class BlockManager:
    def __init__(self):
        self.free = deque(range(1, PAGES))  # page 0 is padding
        self.owned = {}

    def allocate(self, request, tokens):
        need = -(-tokens // PAGE)
        self.owned[request] = [self.free.popleft() for _ in range(need)]
        return self.owned[request]

    def release(self, request):
        self.free.extend(reversed(self.owned.pop(request, [])))


class PageTable:
    def __init__(self, width):
        self.data = torch.zeros(ROWS, width, dtype=torch.long, device=DEVICE)
        self.used = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)

    @property
    def width(self):
        return self.data.shape[1]

    def reserve(self, pages):
        if pages > self.width:
            wider = self.data.new_zeros(ROWS, pages)
            wider[:, : self.width].copy_(self.data)
            self.data = wider

    def write(self, row, blocks, tokens):
        self.reserve(len(blocks))
        self.data[row].zero_()
        self.data[row, : len(blocks)].copy_(torch.tensor(blocks))
        self.used[row] = tokens


class PagedDecoder:
    LENGTHS = [(5, 9), (17, 3), (20, 8), (1, 20), (12, 13), (19, 2)]

    def __init__(self):
        gen = torch.Generator().manual_seed(30)
        self.pool_k = torch.randn(PAGES, PAGE, DIM, generator=gen).to(DEVICE)
        self.pool_v = torch.randn(PAGES, PAGE, DIM, generator=gen).to(DEVICE)
        self.manager, self.table = BlockManager(), PageTable(MAX_PAGES)
        self.q = torch.zeros(ROWS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(67)
        self.turn = 0
        self.schedule()

    def schedule(self):
        lengths = self.LENGTHS[self.turn % len(self.LENGTHS)]
        self.turn += 1
        for row, tokens in enumerate(lengths):
            self.manager.release(row)
            self.table.write(row, self.manager.allocate(row, tokens), tokens)
        self.q.copy_(torch.randn(ROWS, DIM, generator=self.gen))

    def attend(self):
        pages = self.table.data
        k = self.pool_k[pages].flatten(1, 2)
        v = self.pool_v[pages].flatten(1, 2)
        live = torch.arange(self.table.width * PAGE, device=DEVICE) < self.table.used[:, None]
        att = torch.einsum("rd,rtd->rt", self.q, k) / DIM**0.5
        att = att.masked_fill(~live, float("-inf"))
        return torch.einsum("rt,rtd->rd", att.softmax(-1), v)


paged = PagedDecoder()


@torch.no_grad()
def step():
    return paged.attend()


def vary():
    paged.schedule()
