"""Radar tracking: Kalman filters are kept by slot, a batch of plots updates some of them."""

from types import SimpleNamespace

import torch

BATCH, SLOTS = 4, 10
TRASH = SLOTS - 1  # padding writes there
DT, NOISE = 0.5, 0.3


class Tracker:
    def __init__(self, seed=131):
        self.gen = torch.Generator().manual_seed(seed)
        self.f = torch.tensor([[1.0, DT], [0.0, 1.0]])
        self.q = 0.05 * torch.eye(2)
        self.mean = torch.randn(SLOTS, 2, generator=self.gen)
        self.cov = torch.eye(2).repeat(SLOTS, 1, 1)
        self.plots = torch.zeros(BATCH)
        self.slots = torch.zeros(BATCH, dtype=torch.long)
        self.count = torch.zeros((), dtype=torch.long)
        self.live, self.sweep = 0, 0

    def vary(self):
        """The antenna turns: each sector sees its own tracks."""
        sector = [[0, 1, 2], [3, 4], [5, 6, 7, 8]][self.sweep % 3]
        self.sweep += 1
        self.live = len(sector)
        self.count.fill_(self.live)
        self.slots[: self.live].copy_(torch.tensor(sector))
        self.plots[: self.live].copy_(torch.randn(self.live, generator=self.gen))

    def step(self):
        real = torch.arange(BATCH) < self.count
        slots = torch.where(real, self.slots, TRASH)
        mean = self.mean[slots] @ self.f.t()
        cov = self.f @ self.cov[slots] @ self.f.t() + self.q
        gain = cov[:, :, 0] / (cov[:, 0, 0] + NOISE)[:, None]
        innovation = self.plots - mean[:, 0]
        mean = mean + gain * innovation[:, None]
        cov = cov - gain[:, :, None] * cov[:, None, 0, :]
        self.mean = self.mean.index_copy_(0, slots, mean).view(SLOTS, 2)
        self.cov = self.cov.index_copy_(0, slots, cov)
        return mean, innovation


def make():
    tracker = Tracker()
    tracker.vary()
    return SimpleNamespace(step=tracker.step, vary=tracker.vary, rows=lambda: tracker.live)
