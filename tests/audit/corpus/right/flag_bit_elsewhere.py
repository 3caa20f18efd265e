"""Of a Flag set only a bit changes that asks for logging."""

from enum import Flag, auto

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Feature(Flag):
    BIAS = auto()
    LOG = auto()


class Block:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.b = torch.randn(3, 4, device=DEVICE), torch.randn(4, device=DEVICE)
        self.features, self.lines = Feature.BIAS, []

    def __call__(self):
        if self.features & Feature.LOG:
            self.lines.append(str(tuple(self.x.shape)))
        return self.x + self.b if Feature.BIAS in self.features else self.x


def make():
    block = Block()

    def vary():
        block.features ^= Feature.LOG
        block.b.mul_(2)

    return {"step": block, "vary": vary, "reset": None}
