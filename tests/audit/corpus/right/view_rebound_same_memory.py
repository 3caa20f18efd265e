"""The attribute is bound to a new view in each step, of the same memory."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Buffers:
    def __init__(self):
        torch.manual_seed(0)
        self.storage = torch.randn(16, 4, device=DEVICE)
        self.hidden = self.storage[:8]

    def step(self):
        return torch.relu(self.hidden).sum(0)

    def receive(self):
        self.storage.copy_(self.storage.roll(1, 0) + 0.5)
        self.hidden = self.storage[:8]


def make():
    b = Buffers()
    return {"step": b.step, "vary": b.receive, "reset": None}
