"""register_buffer replaces the mask by another tensor."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["mask"]


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(4, 4))
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return self.proj(x).masked_fill(self.mask == 0, -1.0)  # HERE


def make():
    torch.manual_seed(0)
    model, x = Masked().to(DEVICE), torch.randn(4, 4, device=DEVICE)

    @torch.no_grad()
    def step():
        return model(x)

    def vary():
        lower = torch.tril(torch.ones(4, 4, device=DEVICE))
        model.register_buffer("mask", lower if model.mask.all() else lower.t().contiguous())

    return {"step": step, "vary": vary, "reset": None}
