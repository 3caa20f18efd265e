"""Slices by Python constants and by an attribute that never changes."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Split:
    half = 4

    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(3, 8, device=DEVICE)
        self.generation = 0

    def __call__(self):
        left, right = self.x[:, : self.half], self.x[:, self.half :]
        return torch.nn.functional.silu(left) * right


def make():
    s = Split()

    def vary():
        s.generation += 1
        s.x.mul_(1.2)

    return {"step": s, "vary": vary, "reset": None}
