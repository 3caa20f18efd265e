"""The int8 KV scale is a zero-dimensional CPU tensor: it enters the launch as a number, not as memory."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["k_scale", "scale"]


class Int8KVCache:
    def __init__(self, slots=6, dim=4):
        self.data = torch.zeros(slots, dim, dtype=torch.int8, device=DEVICE)
        self.k_scale = graphs.host(torch.tensor(0.02))

    def calibrate(self, amax):
        self.k_scale.fill_(amax / 127)

    def store(self, keys):
        quantised = torch.round(keys / self.k_scale).clamp(-127, 127)  # HERE
        self.data.copy_(quantised.to(torch.int8))

    def load(self):
        return self.data.float() * self.k_scale  # HERE


class Layer:
    def __init__(self):
        torch.manual_seed(0)
        self.cache = Int8KVCache()
        self.keys = torch.randn(6, 4, device=DEVICE)
        self.query = torch.randn(4, device=DEVICE)

    def forward(self):
        self.cache.store(self.keys)  # HERE
        return self.cache.load() @ self.query  # HERE


def make():
    layer = Layer()
    amax = iter([3.0, 7.0, 1.0, 9.0, 2.0] * 5)

    def vary():
        layer.keys.mul_(1.5)
        layer.cache.calibrate(next(amax))

    return {"step": layer.forward, "vary": vary, "reset": None}
