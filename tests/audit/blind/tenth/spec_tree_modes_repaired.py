"""Speculative decoding: a draft tree is verified in one pass under a tree mask."""

import enum
from types import SimpleNamespace

import torch

NODES, DIM = 7, 16


class Tree(enum.Enum):
    CHAIN = (-1, 0, 1, 2, 3, 4, 5)
    BUSHY = (-1, 0, 0, 1, 1, 2, 2)
    WIDE = (-1, 0, 0, 0, 0, 0, 0)


def tree_bias(parents):
    bias = torch.full((NODES, NODES), float("-inf"))
    for node in range(NODES):
        at = node
        while at >= 0:
            bias[node, at] = 0.0
            at = parents[at]
    return bias


class Verifier:
    def __init__(self, seed=61):
        self.gen = torch.Generator().manual_seed(seed)
        self.wq, self.wk, self.wv = torch.randn(3, DIM, DIM, generator=self.gen) / DIM**0.5
        self.bias = {mode: tree_bias(mode.value) for mode in Tree}
        self.live_bias = self.bias[Tree.CHAIN].clone()
        self.draft = torch.zeros(NODES, DIM)
        self.accepted = 9.0  # running mean of the accepted length
        self.mode = Tree.CHAIN
        self.tick = 0

    def vary(self):
        self.tick += 1
        self.accepted = 0.7 * self.accepted + 0.3 * (1 + 5 * (self.tick % 7 == 0))
        if self.accepted > 3.0:
            self.mode = Tree.CHAIN
        else:
            self.mode = Tree.BUSHY if self.accepted > 1.8 else Tree.WIDE
        self.live_bias.copy_(self.bias[self.mode])
        self.draft.copy_(torch.randn(NODES, DIM, generator=self.gen))

    def step(self):
        q, k, v = self.draft @ self.wq, self.draft @ self.wk, self.draft @ self.wv
        bias = self.bias[self.mode]
        if bias.shape == self.live_bias.shape:
            bias = self.live_bias
        weight = (q @ k.t() / DIM**0.5 + bias).softmax(-1)
        return weight @ v


def make():
    verifier = Verifier()
    verifier.vary()
    return SimpleNamespace(step=verifier.step, vary=verifier.vary)
