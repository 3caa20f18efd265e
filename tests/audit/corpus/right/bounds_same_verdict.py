"""A host length changes within a bucket: chained comparisons and short circuits all decide as before."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Bucketed:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.mask = torch.randn(16, device=DEVICE), torch.zeros(16, device=DEVICE)
        self.length = 3
        self.mask[:3] = 1

    def padded(self):
        return next(size for size in (1, 8, 16) if size >= self.length)

    def step(self):
        if not 1 < self.length <= 8 or (self.length % 2 == 0 and self.length > 100):
            raise ValueError(self.length)
        n = self.padded()
        return (self.x[:n] * self.mask[:n]).sum() / self.mask[:n].sum()


def make():
    bucketed = Bucketed()

    def vary():
        bucketed.length = bucketed.length % 7 + 2
        bucketed.mask.zero_()
        bucketed.mask[: bucketed.length] = 1

    return {"step": bucketed.step, "vary": vary, "reset": None}
