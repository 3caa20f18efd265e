"""ALiBi biases come from an lru_cache by length; the prompt grows and with it the key."""

from functools import lru_cache

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address", "lost-kernel"]
SUBJECTS = ["kv_len", "alibi", "bias"]


@lru_cache(maxsize=16)
def alibi_bias(heads, kv_len, max_len, device):
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=device) / heads)
    distance = torch.arange(max_len, device=device) - (kv_len - 1)
    bias = slopes[:, None] * distance
    return bias.masked_fill(distance > 0, float("-inf"))


class MPTAttention:
    def __init__(self, heads=2, dim=4, max_len=16):
        torch.manual_seed(0)
        self.heads, self.max_len = heads, max_len
        self.q = torch.randn(heads, dim, device=DEVICE)
        self.k = torch.randn(heads, max_len, dim, device=DEVICE)
        self.v = torch.randn(heads, max_len, dim, device=DEVICE)
        self.kv_len = 5

    def forward(self):
        bias = alibi_bias(self.heads, self.kv_len, self.max_len, DEVICE)  # HERE
        scores = torch.einsum("hd,htd->ht", self.q, self.k)
        return torch.einsum("ht,htd->hd", (scores + bias).softmax(-1), self.v)  # HERE


def make():
    layer = MPTAttention()

    def decode_one():
        layer.q.neg_()
        layer.kv_len += 1

    return {"step": layer.forward, "vary": decode_one, "reset": None}
