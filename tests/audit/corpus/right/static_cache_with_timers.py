"""A static KV cache at device positions; wall-clock timers, counters and a log grow beside it."""

import collections
import time

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Metrics:
    def __init__(self):
        self.latency = collections.deque(maxlen=100)
        self.tokens = 0

    def __enter__(self):
        self.began = time.perf_counter()
        return self

    def __exit__(self, *exception):
        self.latency.append(time.perf_counter() - self.began)
        self.tokens += 1


class CachedAttention(nn.Module):
    def __init__(self, batch=2, max_len=8, dim=4):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim, bias=False, device=DEVICE)
        for name in ("k_cache", "v_cache"):
            self.register_buffer(name, torch.zeros(batch, max_len, dim, device=DEVICE))

    def forward(self, x, positions):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        at = positions.view(-1, 1, 1).expand(-1, 1, x.shape[-1])
        self.k_cache.scatter_(1, at, k)
        self.v_cache.scatter_(1, at, v)
        ahead = torch.arange(self.k_cache.shape[1], device=DEVICE) > positions[:, None]
        scores = (q @ self.k_cache.transpose(1, 2)).squeeze(1).masked_fill(ahead, float("-inf"))
        return torch.einsum("bt,btd->bd", scores.softmax(-1), self.v_cache)


def make():
    torch.manual_seed(0)
    layer, metrics = CachedAttention().requires_grad_(False), Metrics()
    x = torch.randn(2, 1, 4, device=DEVICE)
    positions = torch.tensor([2, 0], device=DEVICE)

    def step():
        with metrics:
            return layer(x, positions)

    def vary():
        x.mul_(-1.1)
        positions.add_(1)

    return {"step": step, "vary": vary, "reset": None}
