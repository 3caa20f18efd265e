"""A Python random number scales the input."""

import random

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["random", "repeat"]


def make():
    x = torch.ones(8, device=DEVICE)

    def jitter():
        return 1.0 + random.random()  # HERE

    def step():
        return x * jitter()  # HERE

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
