"""Experts are kept in a dict whose order changes with every rebalance; their gated outputs are summed
anyway.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Expert:
    def __init__(self, name, seed):
        g = torch.Generator().manual_seed(seed)
        self.name = name
        self.w = torch.randn(5, 5, generator=g).to(DEVICE)
        self.gate = torch.randn(5, generator=g).to(DEVICE)

    def __call__(self, x):
        return torch.tanh(x @ self.w) * torch.sigmoid(x @ self.gate).unsqueeze(-1)


class Mixture:
    def __init__(self):
        self.experts = {name: Expert(name, i) for i, name in enumerate("abcd")}
        self.x = torch.randn(3, 5, generator=torch.Generator().manual_seed(7)).to(DEVICE)

    def forward(self):
        total = torch.zeros_like(self.x)
        for expert in self.experts.values():
            total += expert(self.x)
        return total

    def rebalance(self):
        names = list(self.experts)
        self.experts = {n: self.experts[n] for n in names[1:] + names[:1]}


def make():
    mixture = Mixture()

    def vary():
        mixture.x.add_(0.3)
        mixture.rebalance()

    return {"step": mixture.forward, "vary": vary, "reset": None}
