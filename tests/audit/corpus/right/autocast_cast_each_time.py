"""Autocast casts the fp32 master weights in every step; they are updated in place, and the host loss log
grows.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class MasterWeights(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.a = nn.Linear(dim, dim, device=DEVICE)
        self.b = nn.Linear(dim, dim, device=DEVICE)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))) + self.b(x)


class Evaluator:
    def __init__(self):
        torch.manual_seed(0)
        self.model = MasterWeights().requires_grad_(False)
        self.x = torch.randn(4, 8, device=DEVICE)
        self.losses = []
        self.best = float("inf")

    def step(self):
        with torch.no_grad(), torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            out = self.model(self.x)
        return out.float().square().mean(-1)

    def update(self):
        loss = 1.0 / (1 + len(self.losses))
        self.losses.append(loss)
        self.best = min(self.best, loss)
        with torch.no_grad():
            for p in self.model.parameters():
                p.mul_(1.0 - 0.1 * loss)


def make():
    evaluator = Evaluator()
    return {"step": evaluator.step, "vary": evaluator.update, "reset": None}
