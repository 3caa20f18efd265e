"""Indexing by a boolean device mask needs the number of True values on the host."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["host-sync"]
SUBJECTS = ["index", "mask", "nonzero"]


class Pool(torch.nn.Module):
    def forward(self, x, mask):
        kept = x[mask]  # HERE
        return kept.mean(0)


def make():
    torch.manual_seed(0)
    x = torch.randn(6, 4, device=DEVICE)
    mask = torch.tensor([1, 0, 1, 1, 0, 1], device=DEVICE).bool()
    pool = Pool()
    return {"step": lambda: pool(x, mask), "vary": lambda: x.add_(1), "reset": None}
