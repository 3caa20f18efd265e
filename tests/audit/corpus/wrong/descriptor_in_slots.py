"""A validating descriptor over a slot: the value is read through __get__."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["alpha", "_alpha", "blend"]


class Unit:
    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, owner, kind=None):
        return self if owner is None else getattr(owner, self.slot)  # HERE

    def __set__(self, owner, value):
        setattr(owner, self.slot, min(1.0, max(0.0, value)))


class Blend:
    __slots__ = ("_alpha", "a", "b")
    alpha = Unit()

    def __init__(self):
        torch.manual_seed(0)
        self.a, self.b = torch.randn(4, device=DEVICE), torch.randn(4, device=DEVICE)
        self.alpha = 0.9

    def mix(self):
        return torch.lerp(self.a, self.b, self.alpha)  # HERE


def make():
    blend = Blend()

    def vary():
        blend.alpha = blend.alpha - 0.2

    return {"step": blend.mix, "vary": vary, "reset": None}
