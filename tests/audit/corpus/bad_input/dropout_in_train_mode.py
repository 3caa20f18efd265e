"""A network left in train mode drops at random."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["random", "dropout", "rand", "bernoulli"]


def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 2)).to(DEVICE).train()
    x = torch.randn(3, 4, device=DEVICE)

    @torch.no_grad()
    def step():
        return net(x)  # HERE

    return {"step": step, "vary": lambda: x.add_(1), "reset": None}
