"""The KV cache keeps its address and changes its layout: the strides in the graph are those of capture."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address", "diverged"]
SUBJECTS = ["kv", "layout", "stride"]


class KVCache:
    LAYOUTS = ("NHD", "HND")

    def __init__(self, tokens=4, heads=2, dim=3):
        self.shape = (tokens, heads, dim)
        self.memory = torch.arange(24.0, device=DEVICE)
        self.layout = "NHD"
        self.rebind()

    def rebind(self):
        n, h, d = self.shape
        if self.layout == "NHD":
            self.kv = self.memory.view(n, h, d)
        else:
            self.kv = self.memory.view(h, n, d).transpose(0, 1)


class Attention:
    def __init__(self):
        torch.manual_seed(0)
        self.cache = KVCache()
        self.q = torch.randn(2, 3, device=DEVICE) / 10

    def forward(self):
        kv = self.cache.kv  # HERE
        scores = torch.einsum("hd,nhd->hn", self.q, kv)  # HERE
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), kv)  # HERE


def make():
    layer = Attention()

    def vary():
        layer.q.mul_(1.1)
        layer.cache.layout = "HND" if layer.cache.layout == "NHD" else "NHD"
        layer.cache.rebind()

    return {"step": layer.forward, "vary": vary, "reset": None}
