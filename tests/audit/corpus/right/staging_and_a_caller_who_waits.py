"""Pinned memory without events: whoever calls reads each result, and so has waited."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    staging = graphs.host(torch.zeros(4), pinned=True)
    x, numbers = torch.zeros(4, device=DEVICE), iter(range(3, 40))

    def step():
        return x * 2

    def vary():
        staging.fill_(next(numbers))
        x.copy_(staging, non_blocking=True)

    return {"step": step, "vary": vary, "reset": None}
