"""A Python branch on a device tensor."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["bool", "any", "item", "local_scalar_dense", "is_nonzero"]


def make():
    x = torch.arange(8.0, device=DEVICE)

    def step():
        y = x * 2
        if torch.isnan(y).any():  # HERE
            y = torch.nan_to_num(y)
        return y

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
