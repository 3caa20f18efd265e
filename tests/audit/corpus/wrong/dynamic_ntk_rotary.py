"""Dynamic NTK rotary: the tables are rebuilt when the batch outgrows them, and the graph keeps the old
ones.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address", "lost-kernel"]
SUBJECTS = ["max_seq_len", "cached_len", "cos", "sin", "table"]


class DynamicNTKRotary(nn.Module):
    def __init__(self, dim, base=10000.0, trained_len=8):
        super().__init__()
        self.dim, self.base, self.trained_len = dim, base, trained_len
        self.cached_len = 0
        self.cos = self.sin = None

    def _grow(self, length):
        factor = max(1.0, length / self.trained_len)
        base = self.base * factor ** (self.dim / (self.dim - 2))
        inv = 1.0 / base ** (torch.arange(0, self.dim, 2, device=DEVICE).float() / self.dim)
        angle = torch.outer(torch.arange(64, device=DEVICE).float(), inv)
        self.cos, self.sin = angle.cos(), angle.sin()  # HERE
        self.cached_len = length

    def forward(self, x, positions, max_seq_len):
        if max_seq_len > self.cached_len:  # HERE
            self._grow(max_seq_len)
        cos, sin = self.cos[positions], self.sin[positions]  # HERE
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.qk = nn.Linear(dim, 2 * dim, bias=False, device=DEVICE)
        self.rotary = DynamicNTKRotary(dim)

    def forward(self, x, positions, max_seq_len):
        q, k = self.qk(x).chunk(2, dim=-1)
        q = self.rotary(q, positions, max_seq_len)
        k = self.rotary(k, positions, max_seq_len)
        return torch.softmax(q @ k.T / 8**0.5, dim=-1)


class Batch:
    def __init__(self):
        self.x = torch.randn(6, 8, device=DEVICE)
        self.positions = torch.arange(6, device=DEVICE)
        self.max_seq_len = 8


def make():
    torch.manual_seed(0)
    layer, batch = Attention().requires_grad_(False), Batch()

    def step():
        return layer(batch.x, batch.positions, batch.max_seq_len)  # HERE

    def vary():
        batch.positions.add_(5)
        batch.max_seq_len += 5

    return {"step": step, "vary": vary, "reset": None}
