"""A NamedTuple of metadata is replaced every step: new step number and request names, the same tensors."""

from typing import NamedTuple

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Meta(NamedTuple):
    number: int
    names: tuple
    x: torch.Tensor
    w: torch.Tensor


class Runner:
    def __init__(self):
        torch.manual_seed(0)
        self.meta = Meta(0, ("a",), torch.randn(3, 4, device=DEVICE), torch.randn(4, 2, device=DEVICE))

    def __call__(self):
        number, names, x, w = self.meta
        if number < 0 or not names:
            raise ValueError(names)
        return x @ w


def make():
    runner = Runner()

    def vary():
        runner.meta = runner.meta._replace(number=runner.meta.number + 1, names=("b", *runner.meta.names)[:2])
        runner.meta.x.add_(1)

    return {"step": runner, "vary": vary, "reset": None}
