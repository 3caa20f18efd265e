"""Double buffering swaps two attributes between steps; the graph keeps reading the first one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["front", "back"]


class Pipe:
    def __init__(self):
        torch.manual_seed(0)
        self.front = torch.randn(8, device=DEVICE)
        self.back = torch.randn(8, device=DEVICE)

    def swap(self):
        self.front, self.back = self.back, self.front
        self.front.add_(1.0)

    def consume(self):
        return torch.sqrt(self.front.abs())  # HERE


def make():
    p = Pipe()
    return {"step": p.consume, "vary": p.swap, "reset": None}
