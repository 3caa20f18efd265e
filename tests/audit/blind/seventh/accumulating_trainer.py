"""Gradient accumulation over micro-batches with an update every k-th one.

The host keeps its own count for progress reports.
"""

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Progress:
    def __init__(self, every):
        self.every = every
        self.micro = 0
        self.updates = 0
        self.messages = []

    def advance(self):
        self.micro += 1
        if self.micro % self.every == 0:
            self.updates += 1
            self.messages.append(f"update {self.updates} after {self.micro} micro-batches")


class Accumulator:
    """Sums gradients; hands out their mean on every k-th call."""

    def __init__(self, params, every):
        self.total = [torch.zeros_like(p) for p in params]
        self.count = torch.zeros((), device=DEVICE)
        self.every = torch.full((), float(every), device=DEVICE)

    def add(self, grads):
        for t, g in zip(self.total, grads):
            t.add_(g)
        self.count.add_(1)
        return self.count >= self.every

    def mean(self):
        return [t / self.count for t in self.total]

    def discharge(self, due):
        keep = (~due).to(torch.float32)
        for t in self.total:
            t.mul_(keep)
        self.count.mul_(keep)


class Trainer:
    def __init__(self, every=3, lr=0.2, seed=151):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        shapes = ((7, 14), (14,), (14, 2))
        self.params = [
            (0.4 * torch.randn(s, device=DEVICE, generator=self.rng)).requires_grad_(True) for s in shapes
        ]
        self.origin = [p.detach().clone() for p in self.params]
        self.acc = Accumulator([p.detach() for p in self.params], every)
        self.progress = Progress(every)
        self.lr = lr
        self.x = torch.randn(10, 7, device=DEVICE, generator=self.rng)
        self.y = torch.randn(10, 2, device=DEVICE, generator=self.rng)

    def feed(self):
        self.x.normal_(generator=self.rng)
        self.y.normal_(generator=self.rng)

    def micro_step(self):
        w, b, v = self.params
        loss = F.mse_loss(torch.relu(self.x @ w + b) @ v, self.y)
        grads = torch.autograd.grad(loss, self.params)
        with torch.no_grad():
            due = self.acc.add(grads)
            for p, g in zip(self.params, self.acc.mean()):
                p.copy_(torch.where(due, p - self.lr * g, p))
            self.acc.discharge(due)
        self.progress.advance()
        return loss.detach(), w.detach(), v.detach()


trainer = Trainer()


def step():
    return trainer.micro_step()


def vary():
    trainer.feed()


@torch.no_grad()
def reset():
    for p, o, t in zip(trainer.params, trainer.origin, trainer.acc.total):
        p.copy_(o)
        t.zero_()
    trainer.acc.count.zero_()
    trainer.progress = Progress(trainer.progress.every)
