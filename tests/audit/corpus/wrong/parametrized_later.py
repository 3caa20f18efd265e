"""A parametrization is registered on a weight after capture."""

import torch
from torch import nn
from torch.nn.utils import parametrize

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value", "moved-address"]
SUBJECTS = ["weight", "parametrizations", "Clamp"]


class Halve(nn.Module):
    def forward(self, w):
        return w.tanh() * 0.5  # HERE


def make():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 2).to(DEVICE), torch.randn(3, 4, device=DEVICE)

    def step():
        with torch.no_grad():
            return layer(x)  # HERE

    def vary():
        parametrize.register_parametrization(layer, "weight", Halve())

    return {"step": step, "vary": vary, "reset": None}
