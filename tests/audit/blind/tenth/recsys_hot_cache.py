"""A recommender keeps hot embeddings on the device; misses are fetched before the step."""

from collections import OrderedDict
from types import SimpleNamespace

import torch

BATCH, FIELDS, DIM = 6, 2, 8
CATALOGUE, CACHE = 200, 24


class HotCache:
    def __init__(self, store):
        self.store = store  # host memory
        self.table = store[:CACHE].clone()
        self.slot_of = OrderedDict((item, item) for item in range(CACHE))
        self.hits = self.misses = 0

    def lookup(self, items):
        missing = [i for i in dict.fromkeys(items) if i not in self.slot_of]
        for item in items:
            if item in self.slot_of:
                self.slot_of.move_to_end(item)
        self.hits += len(items) - len(missing)
        self.misses += len(missing)
        if missing:
            slots = [self.slot_of.popitem(last=False)[1] for _ in missing]
            self.slot_of.update(zip(missing, slots))
            self.fill(torch.tensor(slots), self.store[missing])
        return [self.slot_of[item] for item in items]

    def fill(self, slots, rows):
        self.table = self.table.index_copy(0, slots, rows)


class Ranker:
    def __init__(self, seed=71):
        self.gen = torch.Generator().manual_seed(seed)
        self.cache = HotCache(torch.randn(CATALOGUE, DIM, generator=self.gen))
        self.tower = torch.randn(FIELDS * DIM, 1, generator=self.gen) / 4
        self.slots = torch.zeros(BATCH, FIELDS, dtype=torch.long)
        self.live, self.tick = 0, 0

    def vary(self):
        self.tick += 1
        self.live = 3 + self.tick % 4
        reach = CACHE if self.tick < 4 else 60  # later the traffic drifts
        items = torch.randint(0, reach, (self.live * FIELDS,), generator=self.gen)
        slots = self.cache.lookup(items.tolist())
        self.slots[: self.live].copy_(torch.tensor(slots).view(-1, FIELDS))

    def step(self):
        rows = self.cache.table[self.slots]
        cross = rows.prod(1).sum(-1, keepdim=True)
        return torch.sigmoid(rows.flatten(1) @ self.tower + cross)


def make():
    ranker = Ranker()
    ranker.vary()
    return SimpleNamespace(step=ranker.step, vary=ranker.vary, rows=lambda: ranker.live)
