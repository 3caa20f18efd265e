"""Two tensors trade places and are added: the captured addresses are still those of the caller, the sum is
the same.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Pair:
    def __init__(self):
        torch.manual_seed(0)
        self.a = torch.randn(8, device=DEVICE)
        self.b = torch.randn(8, device=DEVICE)

    def step(self):
        return self.a + self.b


def make():
    p = Pair()

    def vary():
        p.a, p.b = p.b, p.a
        p.a.add_(1)

    return {"step": p.step, "vary": vary, "reset": None}
