"""Rows of padding are multiplied by zero, which does not put out a NaN, and then added up."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["padding-leak"]
SUBJECTS = ["x"]


def make():
    x = torch.zeros(8, 4, device=DEVICE)
    is_real = torch.zeros(8, device=DEVICE)
    batch = {"num_rows": 4}

    def step():
        y = x * is_real[:, None]  # HERE
        return y - y.sum(0)

    def vary():
        batch["num_rows"] = n = 3
        x[:n].add_(1)
        is_real.copy_(torch.arange(8, device=DEVICE) < n)

    return {"step": step, "vary": vary, "reset": None, "rows": lambda: batch["num_rows"]}
