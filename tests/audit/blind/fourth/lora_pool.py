"""Many adapters at once: a pool of slots, least recently used goes first, every token knows its slot."""

import math
from collections import OrderedDict

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, HIDDEN, OUT, SLOTS, MAX_RANK = 6, 16, 12, 3, 8
gen = torch.Generator().manual_seed(47)


class Store:
    """Adapters on disk."""

    def __init__(self) -> None:
        self.adapters = {}
        for i, name in enumerate(["a", "b", "c", "d", "e"]):
            rank = (2, 8, 4, 6, 3)[i]
            down = torch.randn(rank, HIDDEN, generator=gen) / math.sqrt(HIDDEN)
            up = torch.randn(OUT, rank, generator=gen)
            self.adapters[name] = (down, up, 4.0 * (i + 1))


class Pool:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.down = torch.zeros(SLOTS + 1, MAX_RANK, HIDDEN, device=DEVICE)
        self.up = torch.zeros(SLOTS + 1, OUT, MAX_RANK, device=DEVICE)
        self.scaling = torch.zeros(SLOTS + 1, device=DEVICE)
        self.slots: OrderedDict[str, int] = OrderedDict()

    def slot(self, name: str | None, busy: set[str]) -> int:
        """Where an adapter lies; loads it over an idle one if it lies nowhere. The last slot is nobody's."""
        if name is None:
            return SLOTS
        if name not in self.slots:
            if len(self.slots) < SLOTS:
                at = len(self.slots)
            else:
                oldest = next(n for n in self.slots if n not in busy)
                at = self.slots.pop(oldest)
            self.load(at, *self.store.adapters[name])
            self.slots[name] = at
        self.slots.move_to_end(name)
        return self.slots[name]

    def load(self, at: int, down: torch.Tensor, up: torch.Tensor, alpha: float) -> None:
        rank = len(down)
        self.down[at].zero_()
        self.down[at, :rank] = down.to(DEVICE)
        self.up[at].zero_()
        self.up[at, :, :rank] = up.to(DEVICE)
        self.scaling[at] = alpha / rank


class Layer:
    def __init__(self) -> None:
        self.weight = (torch.randn(OUT, HIDDEN, generator=gen) / math.sqrt(HIDDEN)).to(DEVICE)
        self.pool = Pool(Store())
        self.mapping = torch.full((TOKENS,), SLOTS, dtype=torch.long, device=DEVICE)
        self.names: list[str | None] = []

    def assign(self, names: list[str | None]) -> None:
        busy = {n for n in names if n}
        self.names = list(names)
        self.mapping.copy_(torch.tensor([self.pool.slot(n, busy) for n in names]))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        pool = self.pool
        shrunk = torch.einsum("th,trh->tr", x, pool.down[self.mapping])
        delta = torch.einsum("tr,tor->to", shrunk, pool.up[self.mapping])
        return x @ self.weight.t() + delta * pool.scaling[self.mapping, None]


layer = Layer()
x = torch.randn(TOKENS, HIDDEN, generator=gen).to(DEVICE)
mixes = [
    ["a", "a", None, "b", "b", "b"], ["a", "c", None, "b", "b", None], ["d", "d", "d", "d", "a", "a"],
    [None] * 6, ["e", "d", "c", "c", "e", "d"], ["b", "b", "b", None, "a", "e"],
]  # fmt: skip
turn = 0
layer.assign(mixes[0])


def step():
    return layer(x)


def vary():
    global turn
    turn += 1
    layer.assign(mixes[turn % len(mixes)])
    x.copy_(torch.randn(TOKENS, HIDDEN, generator=gen))
