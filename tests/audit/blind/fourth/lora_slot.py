"""A projection with one hot-swappable rsLoRA adapter. Adapters of any rank fit the slot: they are padded."""

import math
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, HIDDEN, OUT, MAX_RANK = 5, 24, 20, 16
gen = torch.Generator().manual_seed(3)


@dataclass
class Checkpoint:
    rank: int
    alpha: float
    down: torch.Tensor  # (rank, HIDDEN)
    up: torch.Tensor  # (OUT, rank)


def checkpoint(rank: int, alpha: float) -> Checkpoint:
    down = torch.randn(rank, HIDDEN, generator=gen) / math.sqrt(HIDDEN)
    up = torch.randn(OUT, rank, generator=gen) / math.sqrt(rank)
    return Checkpoint(rank, alpha, down, up)


class Slot:
    """Device memory for an adapter. It never moves, whatever is loaded."""

    def __init__(self) -> None:
        self.down = torch.zeros(MAX_RANK, HIDDEN, device=DEVICE)
        self.up = torch.zeros(OUT, MAX_RANK, device=DEVICE)
        self.gain = 0.0

    def load(self, adapter: Checkpoint) -> None:
        if adapter.rank > MAX_RANK:
            raise ValueError(f"rank {adapter.rank} does not fit a slot of {MAX_RANK}")
        self.down.zero_()
        self.up.zero_()
        self.down[: adapter.rank].copy_(adapter.down)
        self.up[:, : adapter.rank].copy_(adapter.up)
        self.gain = adapter.alpha / math.sqrt(adapter.rank)


class Projection:
    def __init__(self) -> None:
        self.weight = (torch.randn(OUT, HIDDEN, generator=gen) / math.sqrt(HIDDEN)).to(DEVICE)
        self.bias = torch.randn(OUT, generator=gen).to(DEVICE)
        self.slot = Slot()

    def delta(self, x: torch.Tensor) -> torch.Tensor:
        shrunk = torch.mm(x, self.slot.down.t())
        return torch.mm(shrunk, self.slot.up.t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(self.bias, x, self.weight.t())
        return y.add_(self.delta(x), alpha=self.slot.gain)


class Registry:
    def __init__(self) -> None:
        self.known = {
            "sql": checkpoint(8, 16.0),
            "sql-v2": checkpoint(8, 16.0),
            "legal": checkpoint(4, 16.0),
            "summary": checkpoint(16, 8.0),
        }
        self.loaded = ""

    def activate(self, name: str, into: Slot) -> None:
        if name != self.loaded:
            into.load(self.known[name])
            self.loaded = name


layer = Projection()
registry = Registry()
registry.activate("sql", layer.slot)
tokens = torch.randn(TOKENS, HIDDEN, generator=gen).to(DEVICE)
order = ["sql", "sql-v2", "sql", "legal", "legal", "summary"]
served = 0


def step():
    return torch.nn.functional.silu(layer.forward(tokens))


def vary():
    global served
    served += 1
    registry.activate(order[served % len(order)], layer.slot)
    tokens.copy_(torch.randn(TOKENS, HIDDEN, generator=gen))
