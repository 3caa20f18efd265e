"""The host LRU of adapters reorders and evicts with every batch; the kernel finds its slots in a device
buffer.
"""

from collections import OrderedDict

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class AdapterManager:
    def __init__(self, dim, rank, slots, tokens):
        self.a = torch.zeros(slots, rank, dim, device=DEVICE)
        self.b = torch.zeros(slots, dim, rank, device=DEVICE)
        self.lru = OrderedDict()
        self.token_slots = torch.zeros(tokens, dtype=torch.long, device=DEVICE)
        self.evictions = 0

    def slot_of(self, name):
        if name in self.lru:
            self.lru.move_to_end(name)
            return self.lru[name]
        slot = len(self.lru)
        if slot == len(self.a):
            self.evictions += 1
            _, slot = self.lru.popitem(last=False)
        g = torch.Generator().manual_seed(sum(map(ord, name)))
        self.a[slot].copy_(torch.randn(self.a.shape[1:], generator=g))
        self.b[slot].copy_(torch.randn(self.b.shape[1:], generator=g))
        self.lru[name] = slot
        return slot

    def set_batch(self, names):
        self.token_slots.copy_(torch.tensor([self.slot_of(n) for n in names]))


class Linear:
    def __init__(self):
        torch.manual_seed(0)
        self.w, self.x = torch.randn(6, 6, device=DEVICE), torch.randn(4, 6, device=DEVICE)
        self.manager = AdapterManager(6, 2, slots=3, tokens=4)
        self.manager.set_batch(["a", "a", "b", "c"])

    def forward(self):
        if not self.manager.lru:
            return self.x @ self.w
        a, b = self.manager.a[self.manager.token_slots], self.manager.b[self.manager.token_slots]
        shrunk = torch.einsum("td,trd->tr", self.x, a)
        return self.x @ self.w + torch.einsum("tr,tdr->td", shrunk, b)


def make():
    layer = Linear()
    batches = iter([["b", "d", "a", "a"], ["e", "c", "d", "e"], ["a", "b", "a", "f"]] * 5)
    return {"step": layer.forward, "vary": lambda: layer.manager.set_batch(next(batches)), "reset": None}
