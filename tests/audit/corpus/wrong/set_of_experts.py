"""Which experts take part is a set; the loop asks it, and the graph holds the experts of capture."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["active"]


class Experts:
    def __init__(self):
        self.weights = [torch.full((4,), float(i + 1), device=DEVICE) for i in range(4)]
        self.x = torch.arange(4.0, device=DEVICE)
        self.active = {1, 2}

    def forward(self):
        y = torch.zeros_like(self.x)
        for i in range(4):
            if i in self.active:  # HERE
                y = y + self.x * self.weights[i]
        return y


def make():
    experts = Experts()

    def vary():
        experts.active = {1, 3}

    return {"step": experts.forward, "vary": vary, "reset": None}
