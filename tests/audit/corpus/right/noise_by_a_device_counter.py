"""A generator counts on the device how many numbers it has drawn."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


def make():
    counter, rows = torch.zeros(1, dtype=torch.int64, device=DEVICE), torch.arange(4, device=DEVICE)
    x = torch.ones(4, device=DEVICE)

    def step():
        numbers = ((rows + counter) * 7919 % 101).float()
        counter.add_(4)
        return x + numbers

    return {"step": step, "vary": lambda: x.mul_(2), "reset": None}
