"""The next free row of a KV cache, on the device, is made when the first step asks for it, and each step
moves it on, captured or not.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")


class Cache:
    def __init__(self):
        torch.manual_seed(0)
        self.kv, self.x = torch.zeros(64, 4, device=DEVICE), torch.randn(4, device=DEVICE)
        self.pos = None

    def append(self):
        if self.pos is None:
            self.pos = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.kv.index_copy_(0, self.pos % 64, self.x[None])
        self.pos.add_(1)
        return self.kv.sum(0)


def make():
    cache = Cache()
    return {"step": cache.append, "vary": lambda: cache.x.mul_(-0.7)}
