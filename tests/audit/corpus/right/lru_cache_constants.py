"""Constant tables come from an lru_cache filled in warm-up; nothing changes them later."""

from functools import cache

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@cache
def inverse_frequencies(dim):
    return 1.0 / (10000 ** (torch.arange(0, dim, 2, device=DEVICE) / dim))


def make():
    inverse_frequencies.cache_clear()
    positions = torch.arange(4, device=DEVICE)

    def step():
        angles = positions[:, None] * inverse_frequencies(8)[None, :]
        return torch.cat([angles.cos(), angles.sin()], -1)

    return {"step": step, "vary": lambda: positions.add_(3), "reset": None}
