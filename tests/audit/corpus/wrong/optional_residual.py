"""There was no residual at capture; later there is one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value", "moved-address"]
SUBJECTS = ["residual", "add"]


class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, device=DEVICE).requires_grad_(False)

    def forward(self, x, residual=None):
        if residual is not None:  # HERE
            x = x + residual  # HERE
        return self.norm(x)


class Caller:
    def __init__(self):
        torch.manual_seed(0)
        self.module = Norm()
        self.x = torch.randn(2, 8, device=DEVICE)
        self.residual = None

    def step(self):
        return self.module(self.x, residual=self.residual)  # HERE


def make():
    c = Caller()

    def vary():
        c.residual = torch.randn(2, 8, device=DEVICE)

    return {"step": c.step, "vary": vary, "reset": None}
