"""torch.profiler.record_function around the layers of a training-like forward: names for a profiler, no
work.
"""

import torch
from torch import nn
from torch.profiler import record_function

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Block(nn.Module):
    def __init__(self, number, dim=6):
        super().__init__()
        self.number = number
        self.linear = nn.Linear(dim, dim, device=DEVICE)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        with record_function(f"block {self.number}"):
            return x + torch.nn.functional.gelu(self.linear(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(i) for i in range(2))

    def forward(self, x):
        with record_function("forward"):
            for block in self.blocks:
                x = block(x)
            return x.mean(0)


def make():
    torch.manual_seed(0)
    model = Model().requires_grad_(False)
    x = torch.randn(3, 6, device=DEVICE)
    return {"step": lambda: model(x), "vary": lambda: x.mul_(1.5), "reset": None}
