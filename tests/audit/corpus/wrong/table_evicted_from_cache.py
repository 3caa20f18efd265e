"""A cache is the only owner of a table that the graph reads, and other batches evict it before the replay."""

from functools import lru_cache

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["freed-memory"]
SUBJECTS = ["positions"]


class Attention:
    def __init__(self):
        self.keys = torch.arange(1.0, 9.0, device=DEVICE)

    @staticmethod
    @lru_cache(maxsize=2)
    def table(length):
        return torch.arange(8, device=DEVICE) < length

    def forward(self, length):
        positions = self.table(length)
        return (self.keys * positions).sum()  # HERE


def make():
    attention = Attention()

    def vary():
        attention.keys.add_(1)
        for length in (5, 6, 7):
            attention.forward(length)

    return {"step": lambda: attention.forward(3), "vary": vary, "reset": None}
