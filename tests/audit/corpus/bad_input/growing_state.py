"""The cache is concatenated with each step's row: every run has other shapes."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["past", "repeat", "grow", "alloc"]


def make():
    past = [torch.ones(1, 4, device=DEVICE)]
    x = torch.ones(1, 4, device=DEVICE)

    def step():
        past[0] = torch.cat([past[0], x])  # HERE
        return past[0].sum(0)

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
