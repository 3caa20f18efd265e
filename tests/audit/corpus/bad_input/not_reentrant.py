"""A guard object is entered and never left: the second step raises."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["already", "entered", "RuntimeError"]


class Guard:
    def __init__(self):
        self.held = False

    def enter(self):
        if self.held:
            raise RuntimeError("guard already entered")  # HERE
        self.held = True


def make():
    guard, x = Guard(), torch.ones(4, device=DEVICE)

    def step():
        guard.enter()  # HERE
        return x * 2

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
