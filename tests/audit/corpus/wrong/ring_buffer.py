"""The ring buffer's head is a Python int, advanced by the engine between steps."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["head"]


class Ring:
    def __init__(self, slots, width):
        self.data = torch.zeros(slots, width, device=DEVICE)
        self.head = 0

    def push(self, row):
        self.data[self.head].copy_(row)  # HERE

    def advance(self):
        self.head = (self.head + 1) % len(self.data)


def make():
    torch.manual_seed(0)
    ring = Ring(8, 4)
    x = torch.randn(4, device=DEVICE)

    def step():
        ring.push(torch.sin(x))
        return ring.data.mean(0)

    def vary():
        ring.advance()
        x.add_(0.3)

    return {"step": step, "vary": vary, "reset": None}
