"""The slope of a LeakyReLU deep in a Sequential is annealed."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["negative_slope"]


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.LeakyReLU(0.3), nn.Conv1d(3, 1, 1)).to(DEVICE)
    x = torch.randn(2, 2, 9, device=DEVICE)

    def step():
        with torch.no_grad():
            return net(x)  # HERE

    def vary():
        net[1].negative_slope *= 0.3

    return {"step": step, "vary": vary, "reset": None}
