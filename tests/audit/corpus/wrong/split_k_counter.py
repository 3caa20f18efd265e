"""A split-K counter is zeroed when it is allocated, and the last program of a launch does not put it back."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["not-rearmed"]
SUBJECTS = ["arrived"]


class Layer:
    def __init__(self):
        self.x = torch.arange(8.0, device=DEVICE)
        self.arrived = None

    def forward(self):
        if self.arrived is None:
            self.arrived = torch.zeros(1, dtype=torch.int32, device=DEVICE)  # HERE
        is_first = self.arrived == 0
        self.arrived.add_(1)
        return self.x.sum() * is_first


def make():
    layer = Layer()
    return {"step": layer.forward, "vary": lambda: layer.x.add_(1), "reset": None}
