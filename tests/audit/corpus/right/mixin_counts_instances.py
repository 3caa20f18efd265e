"""A metaclass counts the short-lived helper objects of every step; a mixin names them."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Counting(type):
    made = 0

    def __call__(cls, *args, **kwargs):
        Counting.made += 1
        return super().__call__(*args, **kwargs)


class Named:
    def __init__(self):
        self.name = f"{type(self).__name__}-{Counting.made}"


class Halver(Named, metaclass=Counting):
    def __call__(self, t):
        return t / 2


class Adder(Named, metaclass=Counting):
    def __call__(self, t):
        return t + 1


def make():
    torch.manual_seed(0)
    x = torch.randn(4, device=DEVICE)

    def step():
        out = x
        for op in (Halver(), Adder(), Halver()):
            out = op(out)
        return out

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
