"""Batch norm in train mode advances its running statistics in place."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)

    @torch.no_grad()
    def forward(self, x):
        return self.norm(self.conv(x)).relu(), self.norm.running_var


def make():
    torch.manual_seed(0)
    net, x = Net().to(DEVICE).train(), torch.randn(2, 2, 4, 4, device=DEVICE)
    return {"step": lambda: net(x), "vary": lambda: x.mul_(1.1), "reset": None}
