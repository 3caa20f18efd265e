"""Bounds go in as star-arguments from a list and a dict."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["args", "bounds", "kwargs"]


def squash(x, low, high, *, power=1.0):
    return x.clamp(low, high).pow(power)  # HERE


def make():
    torch.manual_seed(0)
    x = torch.rand(8, device=DEVICE) * 4
    bounds, kwargs = [0.5, 1.0], {"power": 2.0}

    def step():
        return squash(x, *bounds, **kwargs)  # HERE

    def vary():
        bounds[1] += 0.7

    return {"step": step, "vary": vary, "reset": None}
