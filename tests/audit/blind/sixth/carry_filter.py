"""Cascade of one-pole filters, written as coroutines: each takes a block and gives the filtered one.

The coroutines live as long as the service. Corner frequencies may be moved between blocks.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOICES, CUTOFFS = 5, (0.2, 0.5, 0.8)


def pole(mix: torch.Tensor, memory: torch.Tensor):
    """One pole. What it remembers is carried from block to block."""
    blocks, filtered = 0, None
    pages = [torch.empty_like(memory) for _ in range(2)]
    while True:
        block = yield filtered
        filtered = pages[blocks % 2]  # whoever has got the last block may still look at it
        torch.lerp(memory, block, mix, out=filtered)
        memory.copy_(filtered)
        blocks += 1


class Cascade:
    """Poles in a row."""

    def __init__(self) -> None:
        self.mixes = [torch.full((), cutoff, device=DEVICE) for cutoff in CUTOFFS]
        self.memories = [torch.zeros(VOICES, device=DEVICE) for _ in CUTOFFS]
        self._poles = [pole(*pair) for pair in zip(self.mixes, self.memories, strict=True)]
        for each in self._poles:
            next(each)

    def __call__(self, block: torch.Tensor) -> torch.Tensor:
        for each in self._poles:
            block = each.send(block)
        return block

    def tune(self, number: int, cutoff: float) -> None:
        self.mixes[number].fill_(cutoff)


rng = torch.Generator().manual_seed(59)
cascade = Cascade()
block = torch.randn(VOICES, generator=rng).to(DEVICE)
blocks = 0


def step():
    low = cascade(block)
    return low, block - low


def vary():
    global blocks
    block.copy_(torch.randn(VOICES, generator=rng))
    cascade.tune(blocks % len(CUTOFFS), 0.1 + 0.8 * torch.rand((), generator=rng).item())
    blocks += 1


def reset():
    for memory in cascade.memories:
        memory.zero_()
