"""Many LoRA adapters in a few device slots, the least recently used one making room."""

from collections import OrderedDict
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, DIM, SLOTS, MAX_RANK = 4, 12, 3, 4


@dataclass
class Adapter:
    name: str
    rank: int
    alpha: float
    down: torch.Tensor = field(init=False, repr=False)
    up: torch.Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gen = torch.Generator().manual_seed(sum(map(ord, self.name)))
        self.down = torch.randn(DIM, self.rank, generator=gen) * DIM**-0.5
        self.up = torch.randn(self.rank, DIM, generator=gen)

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


CATALOGUE = {
    a.name: a
    for a in (Adapter("fr", 4, 4.0), Adapter("de", 2, 6.0), Adapter("ja", 1, 0.5), Adapter("sql", 3, 9.0))
}


class SlotManager:
    """Slot 0 is the empty adapter. `resident` maps names to the others, oldest first."""

    def __init__(self) -> None:
        self.down = torch.zeros(SLOTS + 1, DIM, MAX_RANK, device=DEVICE)
        self.up = torch.zeros(SLOTS + 1, MAX_RANK, DIM, device=DEVICE)
        self.resident: OrderedDict[str, int] = OrderedDict()
        self.misses = 0

    def slot_of(self, name: str | None) -> int:
        if name is None:
            return 0
        if name in self.resident:
            self.resident.move_to_end(name)
            return self.resident[name]
        self.misses += 1
        slot = len(self.resident) + 1 if len(self.resident) < SLOTS else self.resident.popitem(last=False)[1]
        self._write(slot, CATALOGUE[name])
        self.resident = OrderedDict([*self.resident.items(), (name, slot)])
        return slot

    def _write(self, slot: int, adapter: Adapter) -> None:
        self.down[slot].zero_()
        self.up[slot].zero_()
        self.down[slot, :, : adapter.rank].copy_(adapter.down)
        self.up[slot, : adapter.rank].copy_(adapter.up * adapter.scaling)


manager = SlotManager()
base = (torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0)) * DIM**-0.5).to(DEVICE)
hidden = torch.zeros(BATCH, DIM, device=DEVICE)
slots = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
prompts = torch.Generator().manual_seed(51)
WISHES = (
    ("fr", None, "de", "fr"),
    ("ja", "de", None, "ja"),
    ("sql", "ja", "sql", None),
    ("fr", "sql", "de", "fr"),
)
served = 0


def vary() -> None:
    global served
    names = WISHES[served % len(WISHES)]
    served += 1
    slots.copy_(torch.tensor([manager.slot_of(name) for name in names]))
    hidden.copy_(torch.randn(BATCH, DIM, generator=prompts))


vary()


def step() -> torch.Tensor:
    low = torch.bmm(hidden[:, None, :], manager.down[slots])
    return hidden @ base + torch.bmm(low, manager.up[slots])[:, 0]
