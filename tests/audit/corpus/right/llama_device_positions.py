"""The same LLaMA attention with its position on the device: the host's start_pos moves on and only fills
that buffer.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def frequencies(dim, end, theta=10000.0):
    angle = torch.outer(torch.arange(end).float(), theta ** (-torch.arange(0, dim, 2).float() / dim))
    return torch.polar(torch.ones_like(angle), angle).to(DEVICE)


def rotate(x, freqs):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs.unsqueeze(1)).flatten(-2)


class Attention(nn.Module):
    def __init__(self, dim=8, heads=2, max_len=12):
        super().__init__()
        self.heads, self.max_len = heads, max_len
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False, device=DEVICE)
        self.cache_k = torch.zeros(max_len, heads, dim // heads, device=DEVICE)
        self.cache_v = torch.zeros_like(self.cache_k)

    def forward(self, x, position, freqs):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.wqkv(x).chunk(3, -1))
        q, k = rotate(q, freqs), rotate(k, freqs)
        self.cache_k.index_copy_(0, position, k)
        self.cache_v.index_copy_(0, position, v)
        scores = torch.einsum("qhd,khd->hqk", q, self.cache_k)
        future = torch.arange(self.max_len, device=DEVICE) > position
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, self.cache_v).flatten(-2)


class Generator:
    def __init__(self):
        torch.manual_seed(0)
        self.layer = Attention().requires_grad_(False)
        self.freqs_cis = frequencies(4, 32)
        self.x = torch.randn(1, 8, device=DEVICE)
        self.start_pos = 3
        self.position = torch.tensor([self.start_pos], device=DEVICE)

    def step(self):
        if self.start_pos >= self.layer.max_len:
            raise IndexError(f"position {self.start_pos} is beyond the cache")
        freqs = self.freqs_cis.index_select(0, self.position)
        return self.layer(self.x, self.position, freqs)

    def advance(self):
        self.start_pos += 1
        self.position.fill_(self.start_pos)
        self.x.add_(0.3)


def make():
    gen = Generator()
    return {"step": gen.step, "vary": gen.advance, "reset": None}
