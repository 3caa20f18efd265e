"""After `torch.cuda.manual_seed` with a new seed, replays went on with the numbers of the seed that was set
at capture. A graph reads the generator's offset from device memory, but the seed was a kernel argument, so
only the offset started anew. Since the repair the seed lies in device memory too and is filled before each
replay.
"""

from itertools import count
from types import SimpleNamespace

import torch

PROJECT = "PyTorch"
LINK = "https://github.com/pytorch/pytorch/pull/84967"
MECHANISM = "rng"
CAUSE = "self.seed"
LINE = "seed = self.seed_extragraph if self.fixed else self.seed"
EXECUTORS = ("emulated", "cuda")

NUMEL = 16


class Generator:
    """Numbers by counting, as Philox makes them: from a seed, and from how many have been drawn."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.seed = fixed, 1
        self.seed_extragraph = torch.full((), self.seed, dtype=torch.int64, device=device)
        self.offset_extragraph = torch.zeros((), dtype=torch.int64, device=device)

    def manual_seed(self, seed: int) -> None:
        self.seed = seed
        self.seed_extragraph.fill_(seed)
        self.offset_extragraph.zero_()

    def rand(self) -> torch.Tensor:
        counters = torch.arange(NUMEL, device=self.offset_extragraph.device) + self.offset_extragraph
        seed = self.seed_extragraph if self.fixed else self.seed
        mixed = (counters * 2654435761 + seed * 40503) % 4294967291
        self.offset_extragraph += NUMEL
        return (mixed * 48271 % 2147483647).float() / 2147483647


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    generator = Generator(fixed, device)
    inputs = torch.ones(NUMEL, device=device)
    seeds = count(7)

    def dropout() -> torch.Tensor:
        return inputs * (generator.rand() > 0.5) * 2

    def vary() -> None:
        generator.manual_seed(next(seeds))

    return SimpleNamespace(step=dropout, vary=vary, generator=generator)
