"""Unwritten rows are read by a where() that drops them: the result does not depend on them."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    x = torch.randn(4, 3, device=DEVICE)
    valid = torch.tensor([1, 1, 1, 1, 0, 0], device=DEVICE).bool()

    def step():
        work = torch.empty(6, 3, device=DEVICE)
        work[:4].copy_(x)
        kept = torch.where(valid[:, None], work, torch.zeros_like(work))
        return kept.sum(0)

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
