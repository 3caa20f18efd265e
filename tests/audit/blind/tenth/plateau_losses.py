"""Regression with a reduce-on-plateau schedule that the trainer drives from kept losses."""

from types import SimpleNamespace

import torch

BATCH, WIDTH = 32, 10
PATIENCE = 2


class PlateauTrainer:
    def __init__(self, seed=23):
        self.gen = torch.Generator().manual_seed(seed)
        self.truth = torch.randn(WIDTH, 1, generator=self.gen)
        self.w = torch.zeros(WIDTH, 1)
        self.x = torch.zeros(BATCH, WIDTH)
        self.y = torch.zeros(BATCH, 1)
        self.lr = torch.tensor(0.15)
        self.loss = None
        self.losses = []
        self.cuts = 0

    def schedule(self):
        """Cut the rate when the last losses are no better than those before."""
        if self.loss is None:
            return
        self.losses.append(self.loss)
        if len(self.losses) < 2 * PATIENCE:
            return
        recent = sum(float(v) for v in self.losses[-PATIENCE:])
        before = sum(float(v) for v in self.losses[-2 * PATIENCE : -PATIENCE])
        if recent > 0.97 * before:
            self.lr.mul_(0.5)
            self.cuts += 1

    def vary(self):
        self.schedule()
        self.x.copy_(torch.randn(BATCH, WIDTH, generator=self.gen))
        self.y.copy_(self.x @ self.truth)

    def step(self):
        residual = self.x @ self.w - self.y
        loss = residual.square().mean()
        grad = self.x.t() @ residual * (2.0 / BATCH)
        self.w.sub_(grad * self.lr)
        self.loss = loss
        return loss, self.w.norm()


def make():
    trainer = PlateauTrainer()
    trainer.vary()
    return SimpleNamespace(step=trainer.step, vary=trainer.vary)
