"""The recurrent state is bound to a new tensor in each step instead of being written in place."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "diverged", "AuditError"]
SUBJECTS = ["h"]


class Cell:
    def __init__(self):
        torch.manual_seed(0)
        self.h = torch.zeros(2, 8, device=DEVICE)
        self.x = torch.randn(2, 8, device=DEVICE)
        self.w = torch.randn(8, 8, device=DEVICE) * 0.3

    def step(self):
        self.h = torch.tanh(self.x + self.h @ self.w)  # HERE
        return self.h


def make():
    c = Cell()

    def vary():
        c.x.add_(0.1)

    return {"step": c.step, "vary": vary, "reset": None}
