"""Device lengths are read as a Python list."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["tolist"]


def make():
    lens = torch.tensor([2, 3], device=DEVICE)
    x = torch.arange(8.0, device=DEVICE)

    def step():
        parts = lens.tolist()  # HERE
        return torch.stack([x[:n].sum() for n in parts])

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
