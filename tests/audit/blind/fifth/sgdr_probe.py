"""Linear probe on fixed features, trained by hand-written Nesterov SGD with warm restarts (SGDR).

The learning rate follows half cosines whose length doubles at every restart. One call of `step` is one
minibatch; `vary` loads the next minibatch and moves the epoch on.
"""

import math
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEATURES, CLASSES, BATCH = 12, 4, 16


@dataclass
class Progress:
    epoch: int = 0
    listeners: list = field(default_factory=list)

    def advance(self):
        self.epoch += 1
        for listener in self.listeners:
            listener(self.epoch)


class WarmRestarts:
    """Class attribute that reads like a number: lr_min + half a cosine of the current period."""

    def __init__(self, low, high, first_period):
        self.low, self.high, self.first_period = low, high, first_period

    def __get__(self, owner, owner_type=None):
        if owner is None:
            return self
        period, inside = self.first_period, owner.progress.epoch
        while inside >= period:
            inside -= period
            period *= 2
        return self.low + 0.5 * (self.high - self.low) * (1.0 + math.cos(math.pi * inside / period))


class Nesterov:
    rate = WarmRestarts(low=0.01, high=0.8, first_period=3)
    momentum = 0.9
    decay = 1e-3

    def __init__(self, params, progress):
        self.params = list(params)
        self.progress = progress
        self.velocity = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def update(self, grads):
        for p, g, v in zip(self.params, grads, self.velocity):
            g = g.add(p, alpha=self.decay)
            v.mul_(self.momentum).add_(g)
            p.sub_(g.add(v, alpha=self.momentum), alpha=self.rate)


gen = torch.Generator().manual_seed(11)
weight = (0.1 * torch.randn(FEATURES, CLASSES, generator=gen)).to(DEVICE).requires_grad_(True)
bias = torch.zeros(CLASSES, device=DEVICE, requires_grad=True)
first_weight = weight.detach().clone()
features = torch.randn(BATCH, FEATURES, generator=gen).to(DEVICE)
labels = torch.randint(0, CLASSES, (BATCH,), generator=gen).to(DEVICE)

progress = Progress()
optimizer = Nesterov([weight, bias], progress)


def step():
    logits = features @ weight + bias
    picked = logits.gather(1, labels[:, None]).squeeze(1)
    loss = (torch.logsumexp(logits, 1) - picked).mean()
    optimizer.update(torch.autograd.grad(loss, optimizer.params))
    return {"loss": loss.detach(), "weight": weight.detach().clone()}


def vary():
    features.copy_(torch.randn(BATCH, FEATURES, generator=gen))
    labels.copy_(torch.randint(0, CLASSES, (BATCH,), generator=gen))
    progress.advance()


@torch.no_grad()
def reset():
    weight.copy_(first_weight)
    bias.zero_()
    for v in optimizer.velocity:
        v.zero_()
