"""A thread-local int decides how many rows are rolled."""

import threading

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "diverged"]
SUBJECTS = ["depth", "_local"]

_local = threading.local()


def make():
    torch.manual_seed(0)
    _local.depth = 1
    x = torch.randn(8, 2, device=DEVICE)

    def step():
        return torch.roll(x, _local.depth, 0) * 2  # HERE

    def vary():
        _local.depth = _local.depth % 6 + 1

    return {"step": step, "vary": vary, "reset": None}
