# AdamW with gradients by hand, a captured training step
import math

import torch

torch.manual_seed(10)
N, D = 8, 3


class AdamW:
    def __init__(self, p, lr=0.05, betas=(0.9, 0.99)):
        self.p, self.lr, self.betas = p, lr, betas
        self.m = torch.zeros_like(p)
        self.v = torch.zeros_like(p)
        self.t = 0
        self.t_dev = torch.zeros(1, device="cpu")

    def step(self, g):
        b1, b2 = self.betas
        self.m.mul_(b1).add_(g, alpha=1 - b1)
        self.v.mul_(b2).addcmul_(g, g, value=1 - b2)
        self.t_dev.add_(1)
        c1 = 1 - b1**self.t_dev
        c2 = torch.sqrt(1 - b2**self.t_dev)
        self.p.sub_(self.lr / c1 * self.m / (self.v.sqrt() / c2 + 1e-8))


w = torch.zeros(D, device="cpu")
opt = AdamW(w)
X = torch.randn(N, D, device="cpu")
Y = torch.randn(N, device="cpu")
meta = {"epoch": 0, "shard": "shard-000"}


def step():
    err = X @ w - Y
    loss = err.pow(2).mean()
    opt.step(2 * X.t() @ err / N)
    return loss, w.clone()


def vary():
    meta["epoch"] += 1
    meta["shard"] = f"shard-{meta['epoch']:03d}"
    X.copy_(torch.randn(N, D))
    Y.copy_(torch.randn(N))
