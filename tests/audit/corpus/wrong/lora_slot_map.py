"""The batch's adapter is looked up in a host LRU map; the slot it lies in is frozen."""

from collections import OrderedDict

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address"]
SUBJECTS = ["slot", "adapter", "lora_a", "lora_b"]


class LoRASlots:
    """`max_loras` slots of stacked weights; names to slots in least-recently-used order."""

    def __init__(self, dim, rank, max_loras=2):
        self.lora_a = torch.zeros(max_loras, rank, dim, device=DEVICE)
        self.lora_b = torch.zeros(max_loras, dim, rank, device=DEVICE)
        self.slots = OrderedDict()

    def activate(self, name, a, b):
        if name not in self.slots:
            full = len(self.slots) == len(self.lora_a)
            slot = self.slots.popitem(last=False)[1] if full else len(self.slots)
            self.lora_a[slot].copy_(a)
            self.lora_b[slot].copy_(b)
            self.slots[name] = slot
        self.slots.move_to_end(name)


class LoRALinear:
    def __init__(self):
        torch.manual_seed(0)
        self.weight = torch.randn(8, 8, device=DEVICE)
        self.x = torch.randn(4, 8, device=DEVICE)
        self.manager = LoRASlots(8, 2)
        self.adapter = "sql"
        self.bring("sql")

    def bring(self, name):
        g = torch.Generator().manual_seed(len(name))
        a, b = torch.randn(2, 8, generator=g), torch.randn(8, 2, generator=g)
        self.manager.activate(name, a.to(DEVICE), b.to(DEVICE))
        self.adapter = name

    def forward(self):
        slot = self.manager.slots[self.adapter]  # HERE
        base = self.x @ self.weight.T
        shrunk = self.x @ self.manager.lora_a[slot].T  # HERE
        return base + shrunk @ self.manager.lora_b[slot].T  # HERE


def make():
    layer = LoRALinear()
    names = iter(["haiku", "haiku!", "support", "legal", "x"] * 5)
    return {"step": layer.forward, "vary": lambda: layer.bring(next(names)), "reset": None}
