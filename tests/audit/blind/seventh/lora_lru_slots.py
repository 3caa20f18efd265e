"""LoRA adapters in an LRU of device slots, applied with a gathered bmm."""

from collections import OrderedDict

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_LORAS, RANK, DIM, OUT, ROWS = 2, 4, 16, 12, 6

ADAPTERS = {  # name -> (seed, alpha, rank)
    "fr": (301, 8.0, 4),
    "de": (302, 16.0, 2),
    "it": (303, 4.0, 4),
    "es": (304, 32.0, 1),
}


class LRUCacheLoRA:
    """Slot 0 is the empty adapter; slots 1..MAX_LORAS are recycled."""

    def __init__(self):
        self.active = OrderedDict()
        self.lora_a = torch.zeros(MAX_LORAS + 1, DIM, RANK, device=DEVICE)
        self.lora_b = torch.zeros(MAX_LORAS + 1, RANK, OUT, device=DEVICE)
        self.scaling = {}

    def _write(self, name, slot):
        seed, alpha, rank = ADAPTERS[name]
        gen = torch.Generator().manual_seed(seed)
        self.scaling[name] = alpha / rank
        self.lora_a[slot].zero_()
        self.lora_b[slot].zero_()
        self.lora_a[slot, :, :rank].copy_(torch.randn(DIM, rank, generator=gen) / 4)
        self.lora_b[slot, :rank].copy_(torch.randn(rank, OUT, generator=gen))
        self.lora_b[slot].mul_(self.scaling[name])

    def activate(self, name):
        if name in self.active:
            self.active.move_to_end(name)
            return self.active[name]
        if len(self.active) < MAX_LORAS:
            slot = len(self.active) + 1
        else:
            victim, slot = self.active.popitem(last=False)
            self.scaling.pop(victim)
        self.active[name] = slot
        self._write(name, slot)
        return slot


class LoRALinear:
    def __init__(self, manager):
        gen = torch.Generator().manual_seed(231)
        self.base = (torch.randn(DIM, OUT, generator=gen) / 4).to(DEVICE)
        self.manager = manager
        self.indices = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.no_lora = True

    def set_mapping(self, names):
        slots = {n: self.manager.activate(n) for n in dict.fromkeys(names) if n}
        self.indices.copy_(torch.tensor([slots.get(n, 0) for n in names]))
        self.no_lora = not slots

    def forward(self, x):
        out = x @ self.base
        if self.no_lora:
            return out
        a = self.manager.lora_a[self.indices]
        b = self.manager.lora_b[self.indices]
        return out + torch.bmm(torch.bmm(x[:, None], a), b)[:, 0]


manager = LRUCacheLoRA()
linear = LoRALinear(manager)
x = torch.zeros(ROWS, DIM, device=DEVICE)
_gen = torch.Generator().manual_seed(232)
_batches = iter(
    [
        ["fr", None, "fr", "de", "de", None],
        ["it", "it", None, "fr", "it", "fr"],
        [None] * ROWS,
        ["es", "de", "es", "de", None, None],
        ["de", "de", "fr", "fr", "fr", "fr"],
        [None, None, None, None, None, "it"],
    ]
)


def _load(names):
    linear.set_mapping(names)
    x.copy_(torch.randn(ROWS, DIM, generator=_gen))


_load(["de", "fr", None, None, "fr", "de"])


def step():
    return linear.forward(x)


def vary():
    _load(next(_batches))
