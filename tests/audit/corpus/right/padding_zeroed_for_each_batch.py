"""The rows behind the batch are cleared whenever it shrinks."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    x = torch.zeros(8, 4, device=DEVICE)
    batch = {"num_rows": 4}

    def step():
        return x - x.sum(0)

    def vary():
        batch["num_rows"] = n = 3
        x[:n].add_(1)
        x[n:].zero_()

    return {"step": step, "vary": vary, "reset": None, "rows": lambda: batch["num_rows"]}
