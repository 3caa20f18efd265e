"""Batched LoRA: adapters of mixed ranks share stacked slots of one padded rank."""

from types import SimpleNamespace

import torch

BATCH, WIDTH = 6, 16
SLOTS, MAX_RANK = 3, 8  # slot 0 means no adapter and stays zero


class Adapter:
    def __init__(self, name, rank, alpha, gen):
        self.name, self.rank = name, rank
        self.a = torch.randn(WIDTH, rank, generator=gen) / WIDTH**0.5
        self.b = torch.randn(rank, WIDTH, generator=gen) / rank**0.5
        self.scaling = alpha / rank


class SlotManager:
    """LRU of the adapters that live on the device."""

    def __init__(self):
        self.a = torch.zeros(SLOTS, WIDTH, MAX_RANK)
        self.b = torch.zeros(SLOTS, MAX_RANK, WIDTH)
        self.scale = torch.zeros(SLOTS)
        self.resident = {}  # name -> slot
        self.order = []
        self.max_loaded_rank = 0

    def activate(self, adapter):
        if adapter.name in self.resident:
            self.order.remove(adapter.name)
            self.order.append(adapter.name)
            return self.resident[adapter.name]
        if len(self.order) < SLOTS - 1:
            slot = len(self.order) + 1
        else:
            slot = self.resident.pop(self.order.pop(0))
        r = adapter.rank
        self.a[slot, :, :r].copy_(adapter.a)
        self.b[slot, :r].copy_(adapter.b)
        self.scale[slot].fill_(adapter.scaling)
        self.resident[adapter.name] = slot
        self.order.append(adapter.name)
        self.max_loaded_rank = max(self.max_loaded_rank, r)
        return slot


class LoraLinear:
    def __init__(self, seed=5):
        self.gen = torch.Generator().manual_seed(seed)
        self.base = torch.randn(WIDTH, WIDTH, generator=self.gen) / WIDTH**0.5
        ranks = [8, 4, 2, 8, 1, 6]
        self.adapters = [Adapter(f"ad{i}", r, 4.0, self.gen) for i, r in enumerate(ranks)]
        self.slots = SlotManager()
        self.x = torch.zeros(BATCH, WIDTH)
        self.row_slot = torch.zeros(BATCH, dtype=torch.long)
        self.live, self.tick = 0, 0

    def vary(self):
        i = self.tick
        names = [self.adapters[i % 6], self.adapters[(i + 1) % 6]]
        first, second = (self.slots.activate(ad) for ad in names)
        rows = [first, second, 0, second, first, first][: 3 + i % 4]
        self.live = len(rows)
        self.row_slot.zero_()
        self.row_slot[: self.live].copy_(torch.tensor(rows))
        self.x[: self.live].copy_(torch.randn(self.live, WIDTH, generator=self.gen))
        self.tick += 1

    def step(self):
        a = self.slots.a[self.row_slot]
        b = self.slots.b[self.row_slot]
        scale = self.slots.scale[self.row_slot]
        shrink = torch.bmm(self.x[:, None], a)
        delta = torch.bmm(shrink, b).squeeze(1) * scale[:, None]
        return self.x @ self.base + delta


def make():
    layer = LoraLinear()
    layer.vary()
    return SimpleNamespace(step=layer.step, vary=layer.vary, rows=lambda: layer.live)
