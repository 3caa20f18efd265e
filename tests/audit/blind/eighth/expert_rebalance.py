# MoE with expert rebalancing: logical experts move among physical places
import numpy as np
import torch

torch.manual_seed(5)
T, H, E, TOPK = 5, 6, 4, 2


class Moe:
    def __init__(self):
        self.gate = torch.randn(H, E, device="cpu")
        self.experts = torch.randn(E, H, H, device="cpu")  # by physical place
        self.placement = np.arange(E)
        self.placement_dev = torch.arange(E, device="cpu")
        self.rebalances = 0

    def rebalance(self, seed):
        perm = np.roll(np.arange(E), seed)
        self.experts.copy_(self.experts[torch.from_numpy(perm)])
        self.placement = (self.placement + seed) % E
        self.placement_dev.copy_(torch.from_numpy(self.placement.copy()))
        self.rebalances += 1

    def forward(self, x):
        w, idx = (x @ self.gate).softmax(-1).topk(TOPK, -1)
        out = torch.zeros_like(x)
        for e in range(E):
            place = int(self.placement[e])
            weights = self.experts[place]
            mine = torch.where(idx == e, w, torch.zeros_like(w)).sum(-1, keepdim=True)
            out = out + mine * torch.relu(x @ weights)
        return out


moe = Moe()
tokens = torch.randn(T, H, device="cpu")


def step():
    return moe.forward(tokens)


def vary():
    tokens.copy_(torch.randn(T, H))
    moe.rebalance(1)
