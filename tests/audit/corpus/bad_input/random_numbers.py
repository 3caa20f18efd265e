"""Fresh random numbers in each step: two runs of the same step differ."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["rand", "repeat"]


def make():
    x = torch.zeros(8, device=DEVICE)

    def step():
        return x + torch.randn(8, device=DEVICE)  # HERE

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
