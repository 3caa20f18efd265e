"""A Python index picks the adapter's weights: the graph keeps those of the first adapter."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address"]
SUBJECTS = ["active", "adapters"]


class Layer:
    def __init__(self, size, num_adapters):
        self.base = torch.randn(size, size, device=DEVICE)
        self.adapters = [torch.randn(size, size, device=DEVICE) for _ in range(num_adapters)]
        self.active = 0

    def __call__(self, x):
        return x @ self.base + x @ self.adapters[self.active]  # HERE


def make():
    torch.manual_seed(0)
    layers = [Layer(8, 5) for _ in range(3)]
    x = torch.randn(2, 8, device=DEVICE)

    def step():
        h = x
        for layer in layers:
            h = torch.tanh(layer(h))
        return h

    def vary():
        for layer in layers:
            layer.active = (layer.active + 1) % 5

    return {"step": step, "vary": vary, "reset": None}
