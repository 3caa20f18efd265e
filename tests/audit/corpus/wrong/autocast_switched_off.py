"""Autocast is enabled by a flag of the engine, switched off when an overflow was seen."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["use_amp", "amp", "enabled", "_to_copy", "autocast"]


class Encoder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.inp = nn.Linear(dim, 16, device=DEVICE)
        self.out = nn.Linear(16, dim, device=DEVICE)
        self.norm = nn.LayerNorm(dim, device=DEVICE)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        return self.norm(self.out(h).float() + x)


class Engine:
    def __init__(self):
        torch.manual_seed(0)
        self.encoder = Encoder().requires_grad_(False)
        self.x = torch.randn(4, 8, device=DEVICE)
        self.use_amp = True
        self.overflows = []

    def precision(self):
        return torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=self.use_amp)  # HERE

    @torch.no_grad()
    def step(self):
        with self.precision():  # HERE
            return self.encoder(self.x)  # HERE

    def report_overflow(self, where):
        self.overflows.append(where)
        self.use_amp = False


def make():
    engine = Engine()

    def vary():
        engine.x.mul_(3)
        engine.report_overflow("layer 0")

    return {"step": engine.step, "vary": vary, "reset": None}
