"""Adam with bias correction and a warm-up of the rate, written out for a logistic fit on streamed batches.

Each parameter has an entry in a ledger with its moments and the number of updates it has had.
"""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEATURES, BATCH = 9, 20


@dataclass
class Entry:
    first: torch.Tensor
    second: torch.Tensor
    updates: torch.Tensor

    @classmethod
    def like(cls, p):
        return cls(torch.zeros_like(p), torch.zeros_like(p), torch.zeros((), device=p.device))

    def clear(self):
        for kept in vars(self).values():
            kept.detach().zero_()


class Ledger(dict):
    """Entries by parameter, opened when a parameter is first seen."""

    def __missing__(self, p):
        self[p] = Entry.like(p.detach())
        return self[p]


class Adam:
    def __init__(self, params, rate=0.2, betas=(0.9, 0.99), warmup=4):
        self.params, self.rate, self.betas, self.warmup = list(params), rate, betas, warmup
        self.ledger = Ledger()
        self.calls = 0

    def current_rate(self, updates):
        return self.rate * (updates / self.warmup).clamp_max(1.0)

    @torch.no_grad()
    def update(self, grads):
        self.calls += 1
        for p, g in zip(self.params, grads):
            entry = self.ledger[p]
            entry.updates += 1
            for kept, new, beta in zip((entry.first, entry.second), (g, g * g), self.betas):
                kept.mul_(beta).add_(new, alpha=1.0 - beta)
            m = entry.first / (1.0 - self.betas[0] ** entry.updates)
            v = entry.second / (1.0 - self.betas[1] ** entry.updates)
            p.sub_(self.current_rate(entry.updates) * m / (v.sqrt() + 1e-8))


gen = torch.Generator().manual_seed(90)
weights = torch.zeros(FEATURES, device=DEVICE, requires_grad=True)
offset = torch.zeros((), device=DEVICE, requires_grad=True)
hidden = torch.randn(FEATURES, generator=gen)
x = torch.zeros(BATCH, FEATURES, device=DEVICE)
y = torch.zeros(BATCH, device=DEVICE)
adam = Adam([weights, offset])


def load():
    made = torch.randn(BATCH, FEATURES, generator=gen)
    x.copy_(made)
    y.copy_((made @ hidden > 0).float())


load()


def step():
    logits = x @ weights + offset
    loss = (torch.logaddexp(torch.zeros_like(logits), logits) - y * logits).mean()
    adam.update(torch.autograd.grad(loss, adam.params))
    return loss.detach(), weights.detach().clone()


def vary():
    load()


@torch.no_grad()
def reset():
    for p in adam.params:
        p.zero_()
    for entry in adam.ledger.values():
        entry.clear()
