"""Rows of padding are taken out by a choice, not by a product."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    x = torch.zeros(8, 4, device=DEVICE)
    is_real = torch.zeros(8, dtype=torch.bool, device=DEVICE)
    batch = {"num_rows": 4}

    def step():
        y = torch.where(is_real[:, None], x, 0.0)
        return y - y.sum(0)

    def vary():
        batch["num_rows"] = n = 3
        x[:n].add_(1)
        is_real.copy_(torch.arange(8, device=DEVICE) < n)

    return {"step": step, "vary": vary, "reset": None, "rows": lambda: batch["num_rows"]}
