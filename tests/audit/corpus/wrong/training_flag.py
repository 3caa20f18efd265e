"""Captured in training mode, used after eval(): the extra scaling stays in the graph."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["training", "noise_scale", "mul"]


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 8, device=DEVICE)

    def forward(self, x):
        y = self.proj(x)
        if self.training:  # HERE
            y = y * 1.25  # HERE
        return y


def make():
    torch.manual_seed(0)
    block = Block().requires_grad_(False)
    x = torch.randn(2, 8, device=DEVICE)

    def step():
        return block(x)

    def vary():
        block.eval()
        x.add_(0.5)

    return {"step": step, "vary": vary, "reset": None}
