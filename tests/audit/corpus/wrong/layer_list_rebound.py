"""The list of per-layer caches is rebuilt with new tensors (as after a cache resize)."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["kv_caches", "layers"]


class Worker:
    def __init__(self):
        torch.manual_seed(0)
        self.layers = [torch.randn(4, 4, device=DEVICE) for _ in range(2)]
        self.kv_caches = [torch.randn(4, 4, device=DEVICE) for _ in self.layers]
        self.x = torch.randn(2, 4, device=DEVICE)

    def step(self):
        h = self.x
        for w, kv in zip(self.layers, self.kv_caches, strict=True):
            h = torch.tanh(h @ w)
            h = h + h @ kv  # HERE
        return h

    def resize(self):
        self.kv_caches = [kv.clone() * 2 for kv in self.kv_caches]


def make():
    w = Worker()
    return {"step": w.step, "vary": w.resize, "reset": None}
