"""Async scheduling: batch N+1 is written while batch N is still executing."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, DIM, VOCAB, PAGES, PAGE = 6, 16, 64, 12, 4


class InputSet:
    """One complete set of device inputs for a decode batch."""

    def __init__(self):
        self.ids = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.lens = torch.ones(ROWS, dtype=torch.long, device=DEVICE)
        self.table = torch.zeros(ROWS, 3, dtype=torch.long, device=DEVICE)

    def load(self, ids, lens, table):
        self.ids.copy_(ids, non_blocking=True)
        self.lens.copy_(lens, non_blocking=True)
        self.table.copy_(table, non_blocking=True)


class InputRing:
    def __init__(self, depth=2):
        self.sets = [InputSet() for _ in range(depth)]
        self.head = 0

    @property
    def current(self):
        return self.sets[self.head]

    def publish(self, *batch):
        nxt = (self.head + 1) % len(self.sets)
        self.sets[nxt].load(*batch)
        self.head = nxt


class PagedDecoder:
    def __init__(self):
        gen = torch.Generator().manual_seed(51)
        self.embed = torch.randn(VOCAB, DIM, generator=gen).to(DEVICE)
        self.keys = torch.randn(PAGES, PAGE, DIM, generator=gen).to(DEVICE)
        self.values = torch.randn(PAGES, PAGE, DIM, generator=gen).to(DEVICE)
        self.head = (torch.randn(DIM, VOCAB, generator=gen) / 4).to(DEVICE)
        self.arange = torch.arange(3 * PAGE, device=DEVICE)

    def forward(self, ids, lens, table):
        q = self.embed[ids]
        k = self.keys[table].flatten(1, 2)
        v = self.values[table].flatten(1, 2)
        scores = torch.einsum("rd,rsd->rs", q, k) / DIM**0.5
        scores = scores.masked_fill(self.arange[None] >= lens[:, None], float("-inf"))
        return torch.einsum("rs,rsd->rd", scores.softmax(-1), v) @ self.head


class Engine:
    def __init__(self):
        self.model = PagedDecoder()
        self.ring = InputRing()
        self.gen = torch.Generator().manual_seed(52)
        self.schedule()

    def schedule(self):
        ids = torch.randint(0, VOCAB, (ROWS,), generator=self.gen)
        lens = torch.randint(1, 3 * PAGE, (ROWS,), generator=self.gen)
        table = torch.randint(0, PAGES, (ROWS, 3), generator=self.gen)
        self.ring.publish(ids, lens, table)

    def execute(self):
        cur = self.ring.current
        return self.model.forward(cur.ids, cur.lens, cur.table)


engine = Engine()


def step():
    return engine.execute()


def vary():
    engine.schedule()
