"""In-place KV-cache writes at slots held on the device; the step overwrites cache memory it also reads."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Cache:
    def __init__(self):
        torch.manual_seed(0)
        self.cache = torch.zeros(16, 4, device=DEVICE)
        self.slots = torch.tensor([0, 5], device=DEVICE)
        self.length = torch.tensor(6, device=DEVICE)
        self.kv = torch.randn(2, 4, device=DEVICE)
        self.q = torch.randn(2, 4, device=DEVICE)

    def step(self):
        self.cache.index_copy_(0, self.slots, self.kv)
        scores = self.q @ self.cache.T
        visible = torch.arange(16, device=DEVICE) < self.length
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        return weights @ self.cache


def make():
    c = Cache()

    def vary():
        c.slots.copy_((c.slots + 1) % 16)
        c.length.copy_(torch.clamp(c.length + 1, max=16))
        c.kv.add_(0.3)

    return {"step": c.step, "vary": vary, "reset": None}
