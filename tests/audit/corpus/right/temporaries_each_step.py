"""Many temporaries are allocated and dropped in each step; their addresses differ eagerly."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def make():
    torch.manual_seed(0)
    layers = [torch.randn(8, 8, device=DEVICE) * 0.2 for _ in range(6)]
    x = torch.randn(4, 8, device=DEVICE)
    out = torch.zeros(4, 8, device=DEVICE)

    def step():
        h = x
        for w in layers:
            gate = torch.sigmoid(h @ w)
            h = h * gate + torch.ones_like(h)
            del gate
        out.copy_(h)

    return {"step": step, "vary": lambda: x.mul_(-1.5), "reset": None}
