"""Multi-LoRA linear: per-row adapter slots, rank-sliced weights, per-adapter scaling."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS, RANK, D_IN, D_OUT, ROWS = 3, 4, 24, 20, 8


@dataclass
class LoRAConfig:
    name: str
    alpha: float
    seed: int

    @property
    def scaling(self):
        return self.alpha / RANK


class AdapterTable:
    """Fixed device slots; loading an adapter writes its weights into a slot."""

    def __init__(self):
        self.a = torch.zeros(SLOTS, D_IN, RANK, device=DEVICE)
        self.b = torch.zeros(SLOTS, RANK, D_OUT, device=DEVICE)
        self.resident = [None] * SLOTS

    def load(self, cfg, slot):
        gen = torch.Generator().manual_seed(cfg.seed)
        self.a[slot].copy_(torch.randn(D_IN, RANK, generator=gen) / D_IN**0.5)
        self.b[slot].copy_(torch.randn(RANK, D_OUT, generator=gen))
        self.resident[slot] = cfg

    def slot_of(self, name):
        for i, cfg in enumerate(self.resident):
            if cfg is not None and cfg.name == name:
                return i
        return -1


class LinearWithLoRA:
    def __init__(self, table):
        gen = torch.Generator().manual_seed(2)
        self.weight = (torch.randn(D_IN, D_OUT, generator=gen) / D_IN**0.5).to(DEVICE)
        self.table = table
        self.row_slots = torch.full((ROWS,), -1, dtype=torch.long, device=DEVICE)

    def apply(self, x):
        out = x @ self.weight
        for slot, cfg in enumerate(self.table.resident):
            if cfg is None:
                continue
            delta = (x @ self.table.a[slot]) @ self.table.b[slot]
            picked = (self.row_slots == slot).to(x.dtype)[:, None]
            out.add_(delta * picked, alpha=cfg.scaling)
        return out


CATALOG = {
    c.name: c
    for c in (
        LoRAConfig("sql", 8.0, 100),
        LoRAConfig("chat", 8.0, 101),
        LoRAConfig("code", 8.0, 102),
        LoRAConfig("legal", 32.0, 103),
    )
}


class Engine:
    def __init__(self):
        self.table = AdapterTable()
        for slot, name in enumerate(("sql", "chat", "code")):
            self.table.load(CATALOG[name], slot)
        self.linear = LinearWithLoRA(self.table)
        self.x = torch.zeros(ROWS, D_IN, device=DEVICE)
        self.gen = torch.Generator().manual_seed(8)
        self.queue = [
            ["sql", "chat"],
            ["code", "chat"],
            ["sql", "code"],
            ["legal", "chat"],
            ["legal", "code"],
            ["sql", "chat"],
        ]
        self.assign(["sql", "code"])

    def assign(self, names):
        for name in names:
            if self.table.slot_of(name) < 0:
                keep = {self.table.slot_of(n) for n in names}
                victim = next(s for s in range(SLOTS) if s not in keep)
                self.table.load(CATALOG[name], victim)
        slots = [self.table.slot_of(names[i % len(names)]) for i in range(ROWS)]
        self.linear.row_slots.copy_(torch.tensor(slots))
        self.x.copy_(torch.randn(ROWS, D_IN, generator=self.gen))


engine = Engine()


def step():
    return engine.linear.apply(engine.x)


def vary():
    engine.assign(engine.queue.pop(0))
