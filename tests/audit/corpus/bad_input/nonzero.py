"""The number of finished rows, and so a shape, depends on device values."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["nonzero"]


def make():
    done = torch.tensor([0, 1, 0, 1], device=DEVICE)
    x = torch.arange(8.0, device=DEVICE).view(4, 2)

    def step():
        rows = torch.nonzero(done).flatten()  # HERE
        return x[rows].sum(0)

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
