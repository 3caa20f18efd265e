"""repeat_interleave with device counts has to know the output size."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["repeat_interleave", "counts"]


def make():
    torch.manual_seed(0)
    x = torch.randn(3, 2, device=DEVICE)
    counts = torch.tensor([1, 2, 1], device=DEVICE)

    def step():
        return torch.repeat_interleave(x, counts, dim=0)  # HERE

    return {"step": step, "vary": lambda: counts.copy_(counts.roll(1)), "reset": None}
