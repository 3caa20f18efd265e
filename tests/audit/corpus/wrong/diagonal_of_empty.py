"""Only the diagonal of a fresh matrix is written before it is multiplied."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["empty", "diagonal", "mat"]


def as_diagonal(d):
    mat = torch.empty(d.numel(), d.numel(), device=d.device)  # HERE
    mat.diagonal().copy_(d)
    return mat


def make():
    torch.manual_seed(0)
    d, x = torch.rand(4, device=DEVICE) + 1, torch.randn(4, 2, device=DEVICE)

    def step():
        return torch.einsum("ij,jk->ik", as_diagonal(d), x)  # HERE

    return {"step": step, "vary": lambda: d.add_(0.5), "reset": None}
