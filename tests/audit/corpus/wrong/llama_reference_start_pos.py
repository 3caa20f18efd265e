"""The reference LLaMA attention: caches and rotary frequencies are sliced at a Python start_pos."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["start_pos"]


def precompute_freqs(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    return torch.polar(torch.ones(end, dim // 2), torch.outer(torch.arange(end).float(), freqs)).to(DEVICE)


def rotate(x, freqs):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * freqs.unsqueeze(1)).flatten(-2)


class Attention(nn.Module):
    def __init__(self, dim=8, heads=2, max_len=16):
        super().__init__()
        self.heads = heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False, device=DEVICE)
        self.cache_k = torch.zeros(1, max_len, heads, dim // heads, device=DEVICE)
        self.cache_v = torch.zeros_like(self.cache_k)

    def forward(self, x, start_pos, freqs):
        n = x.shape[1]
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.wqkv(x).chunk(3, -1))
        q, k = rotate(q, freqs), rotate(k, freqs)
        self.cache_k[:, start_pos : start_pos + n] = k  # HERE
        self.cache_v[:, start_pos : start_pos + n] = v  # HERE
        keys, values = self.cache_k[:, : start_pos + n], self.cache_v[:, : start_pos + n]  # HERE
        scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) / 2.0
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values).flatten(-2)


class Generator:
    def __init__(self):
        torch.manual_seed(0)
        self.layer = Attention().requires_grad_(False)
        self.freqs_cis = precompute_freqs(4, 32)
        self.x = torch.randn(1, 1, 8, device=DEVICE)
        self.start_pos = 3

    def step(self):
        freqs = self.freqs_cis[self.start_pos : self.start_pos + 1]  # HERE
        return self.layer(self.x, self.start_pos, freqs)  # HERE


def make():
    gen = Generator()

    def vary():
        gen.x.add_(0.3)
        gen.start_pos += 1

    return {"step": gen.step, "vary": vary, "reset": None}
