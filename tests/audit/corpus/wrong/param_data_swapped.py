"""Weights are reloaded by giving the parameter new storage."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["weight"]


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(8, 16, device=DEVICE)
        self.down = torch.nn.Linear(16, 8, device=DEVICE)

    def forward(self, x):
        h = torch.relu(self.up(x))
        return x + self.down(h)  # HERE


def make():
    torch.manual_seed(0)
    model = Mlp()
    x = torch.randn(3, 8, device=DEVICE)

    @torch.no_grad()
    def step():
        return model(x)

    def vary():
        model.down.weight.data = torch.randn(8, 16, device=DEVICE)

    return {"step": step, "vary": vary, "reset": None}
