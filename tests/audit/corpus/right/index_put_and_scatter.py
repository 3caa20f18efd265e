"""Accumulating index_put, index_add and scatter_reduce into zeroed or full memory, with ids in place; an
int8 side result.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Scatter:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(6, 2, device=DEVICE)
        self.ids = torch.tensor([0, 2, 2, 1, 3, 0], device=DEVICE)

    def step(self):
        bins = torch.zeros(4, 2, device=DEVICE)
        bins.index_put_((self.ids,), self.x, accumulate=True)
        tops = torch.full((4,), -9.0, device=DEVICE).scatter_reduce_(0, self.ids, self.x[:, 0], "amax")
        bins.index_add_(0, self.ids.flip(0), self.x.sort(0).values)
        codes = torch.round(bins * 10).clamp(-128, 127).to(torch.int8)
        return bins + tops[:, None], codes.view(torch.uint8).to(torch.bfloat16)


def make():
    layer = Scatter()

    def vary():
        layer.ids.copy_((layer.ids + 1) % 4)
        layer.x.mul_(1.1)

    return {"step": layer.step, "vary": vary, "reset": None}
