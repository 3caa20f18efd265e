"""Attention with interchangeable backends; the dispatcher takes the one that suits the batch."""

import math

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, TOKENS, HEADS, DIM = 2, 8, 2, 6

BACKENDS = {}


def backend(name, *, upto):
    def register(fn):
        BACKENDS[name] = (upto, fn)
        return fn

    return register


@backend("eager", upto=3)
def eager(q, k, v, keep):
    att = q @ k.transpose(-1, -2) / math.sqrt(DIM)
    att = att.masked_fill(~keep, float("-inf"))
    return att.softmax(-1) @ v


@backend("online", upto=6)
def online(q, k, v, keep):
    """Two halves of the keys, joined by their log-sum-exp."""
    parts = []
    for lo in (0, TOKENS // 2):
        hi = lo + TOKENS // 2
        att = q @ k[..., lo:hi, :].transpose(-1, -2) / math.sqrt(DIM)
        att = att.masked_fill(~keep[..., lo:hi], -1e9)
        lse = att.logsumexp(-1, keepdim=True)
        parts.append((lse, (att - lse).exp() @ v[..., lo:hi, :]))
    total = torch.logaddexp(parts[0][0], parts[1][0])
    return sum((lse - total).exp() * out for lse, out in parts)


@backend("sdpa", upto=TOKENS)
def sdpa(q, k, v, keep):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


class Dispatcher:
    def __init__(self):
        self.name = "eager"
        self.calls = dict.fromkeys(BACKENDS, 0)

    def choose(self, longest):
        self.name = next(n for n, (upto, _) in BACKENDS.items() if longest <= upto)

    def __call__(self, *args):
        self.calls[self.name] += 1
        return BACKENDS[self.name][1](*args)


class AttentionLayer:
    LENGTHS = [(2, 3), (5, 6), (8, 1), (3, 1), (4, 7), (6, 2)]

    def __init__(self):
        self.qkv = torch.zeros(3, BATCH, HEADS, TOKENS, DIM, device=DEVICE)
        self.keep = torch.zeros(BATCH, 1, 1, TOKENS, dtype=torch.bool, device=DEVICE)
        self.dispatch = Dispatcher()
        self.gen = torch.Generator().manual_seed(71)
        self.turn = 0
        self.load()

    def load(self):
        lengths = self.LENGTHS[self.turn % len(self.LENGTHS)]
        self.turn += 1
        self.qkv.copy_(torch.randn(self.qkv.shape, generator=self.gen))
        for i, n in enumerate(lengths):
            self.keep[i].copy_(torch.arange(TOKENS) < n)
        self.dispatch.choose(max(lengths))

    def forward(self):
        return self.dispatch(*self.qkv.unbind(0), self.keep)


layer = AttentionLayer()


@torch.no_grad()
def step():
    return layer.forward()


def vary():
    layer.load()
