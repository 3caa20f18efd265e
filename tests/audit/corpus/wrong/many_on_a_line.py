"""Several statements on a line and a conditional expression over several; only one of the values changes."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["offset", "on", "self.b"]


class Line:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(4, device=DEVICE)
        self.a, self.b, self.on, self.top = 2.0, 3.0, True, 9.0

    def step(self):
        a = self.a
        b = self.b
        top = self.top
        x = self.x * a  # HERE
        shift = (
            b  # HERE
            if self.on
            else 0.0
        )
        return torch.clamp(x + shift, max=top)  # HERE


def make():
    line = Line()

    def vary():
        line.b -= 1.0

    return {"step": line.step, "vary": vary, "reset": None}
