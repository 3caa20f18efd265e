"""torch.empty, written in full by two partial copies before it is read."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    a = torch.randn(3, 4, device=DEVICE)
    b = torch.randn(5, 4, device=DEVICE)

    def step():
        joined = torch.empty(8, 4, device=DEVICE)
        joined[:3].copy_(a)
        joined[3:].copy_(b)
        return joined.cumsum(0)

    def vary():
        a.add_(1)
        b.sub_(1)

    return {"step": step, "vary": vary, "reset": None}
