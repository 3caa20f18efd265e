"""Rows of an empty batch stay unwritten; they go through row-wise work and are cut off before anything is
returned.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class PaddedRunner:
    """Pads to the captured size with whatever the memory holds; only real rows come back."""

    def __init__(self, real=3, padded=8, dim=6):
        torch.manual_seed(0)
        self.real, self.padded, self.dim = real, padded, dim
        self.x = torch.randn(real, dim, device=DEVICE)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(dim, dim, device=DEVICE) for _ in range(2)
        ).requires_grad_(False)
        self.calls = 0

    def pad(self):
        padded = torch.empty(self.padded, self.dim, device=DEVICE)
        padded[: self.real].copy_(self.x)
        return padded

    def forward(self):
        self.calls += 1
        h = self.pad()
        for layer in self.layers:
            h = h + torch.relu(layer(h))
        return h[: self.real].clone()


class Service:
    def __init__(self):
        self.runner = PaddedRunner()
        self.log = []

    def handle(self):
        self.log.append(self.runner.calls)
        return self.runner.forward()


def make():
    service = Service()

    def vary():
        service.runner.x.mul_(-0.7)

    return {"step": service.handle, "vary": vary, "reset": None}
