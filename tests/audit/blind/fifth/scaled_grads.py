"""Gradients of a small net with dynamic loss scaling, for an optimiser that lives on the host.

`step` leaves unscaled gradients in buffers; the host looks at them, applies them, and grows or backs off the scale.
"""

from contextlib import contextmanager

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INPUTS, BATCH = 8, 12


class LossScale:
    def __init__(self, exponent=4, patience=2):
        self.exponent, self.patience, self.good = exponent, patience, 0

    @property
    def factor(self):
        return 2.0**self.exponent

    @contextmanager
    def scaled(self, loss):
        """The loss to differentiate, and what to multiply gradients with afterwards."""
        yield loss * self.factor, 1.0 / self.factor

    def judge(self, is_finite):
        self.good = self.good + 1 if is_finite else 0
        if not is_finite:
            self.exponent -= 1
        elif self.good % self.patience == 0:
            self.exponent += 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x))).squeeze(-1)


class Worker:
    def __init__(self, net, scale):
        self.net, self.scale = net, scale
        self.params = list(net.parameters())
        self.grads = [torch.zeros_like(p) for p in self.params]
        self.all_finite = torch.ones((), dtype=torch.bool, device=DEVICE)
        self.x = torch.zeros(BATCH, INPUTS, device=DEVICE)
        self.y = torch.zeros(BATCH, device=DEVICE)

    def backward(self):
        loss = (self.net(self.x) - self.y).square().mean()
        with self.scale.scaled(loss) as (scaled, back):
            made = torch.autograd.grad(scaled, self.params)
            self.all_finite.fill_(True)
            for kept, g in zip(self.grads, made):
                kept.copy_(g * back)
                self.all_finite.logical_and_(torch.isfinite(g).all())
        return loss.detach()

    @torch.no_grad()
    def apply(self, lr=0.1):
        is_finite = bool(self.all_finite)
        if is_finite:
            for p, g in zip(self.params, self.grads):
                p.sub_(g, alpha=lr)
        self.scale.judge(is_finite)


torch.manual_seed(1)
gen = torch.Generator().manual_seed(2)
worker = Worker(Net().to(DEVICE), LossScale())


def load():
    x = torch.randn(BATCH, INPUTS, generator=gen)
    worker.x.copy_(x)
    worker.y.copy_(x[:, 0] * 1.5 - x[:, 1])


load()


def step():
    loss = worker.backward()
    return {"loss": loss, "norm": torch.stack([g.norm() for g in worker.grads]), "ok": worker.all_finite}


def vary():
    worker.apply()
    load()
