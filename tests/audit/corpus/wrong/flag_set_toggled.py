"""A Flag set is tested with `in`; the bit is off at capture."""

from enum import Flag, auto

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["features", "BIAS", "Feature"]


class Feature(Flag):
    NONE = 0
    BIAS = auto()
    RESIDUAL = auto()


class Block:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.b = torch.randn(3, 4, device=DEVICE), torch.randn(4, device=DEVICE)
        self.features = Feature.RESIDUAL

    def __call__(self):
        out = self.x.sigmoid()
        if Feature.BIAS in self.features:  # HERE
            out = out + self.b  # HERE
        if Feature.RESIDUAL in self.features:  # HERE
            out = out + self.x
        return out


def make():
    block = Block()

    def vary():
        block.features ^= Feature.BIAS

    return {"step": block, "vary": vary, "reset": None}
