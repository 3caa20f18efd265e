"""The step takes the next batch from the data loader itself, so no two runs see the same."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["loader", "next", "StopIteration", "batch", "repeat", "differ"]


class Dataset:
    def __init__(self, n=40):
        torch.manual_seed(0)
        self.items = [torch.randn(3, 4, device=DEVICE) for _ in range(n)]

    def __iter__(self):
        yield from self.items


class Trainer:
    def __init__(self):
        self.loader = iter(Dataset())
        self.w = torch.randn(4, 2, device=DEVICE)

    def batch(self):
        return next(self.loader)  # HERE

    def step(self):
        x = self.batch()  # HERE
        return (x @ self.w).square().mean(0)  # HERE

    def vary(self):
        self.w.mul_(0.9)


def make():
    trainer = Trainer()
    return {"step": trainer.step, "vary": trainer.vary, "reset": None}
