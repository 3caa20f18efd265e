"""Dropout from a counter-based generator, seeded by run and epoch for restarts."""

import hashlib
import logging
from types import SimpleNamespace

import torch

BATCH, WIDTH, KEEP = 8, 16, 0.75
log = logging.getLogger(__name__)


def digest(text):
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


def seeding(run, every):
    ticks = 0

    def advance():
        nonlocal ticks
        ticks += 1

    def current():
        return digest(f"{run}/epoch-{ticks // every}")

    return advance, current


class DropoutTrainer:
    def __init__(self, run="baseline-7", seed=109):
        self.gen = torch.Generator().manual_seed(seed)
        self.run = run
        self.advance, self.seed = seeding(run, every=4)
        self.seed_dev = torch.zeros((), dtype=torch.long)
        self.index = torch.arange(BATCH * WIDTH).view(BATCH, WIDTH)
        self.w = torch.randn(WIDTH, WIDTH, generator=self.gen) / WIDTH**0.5
        self.x = torch.zeros(BATCH, WIDTH)

    def vary(self):
        self.advance()
        self.seed_dev.fill_(self.seed())
        self.x.copy_(torch.randn(BATCH, WIDTH, generator=self.gen))

    def uniform(self, seed):
        h = (self.index * 2654435761 + seed) & 0xFFFFFFFF
        h = ((h ^ (h >> 15)) * 73244475) & 0xFFFFFFFF
        h = h ^ (h >> 13)
        return h.to(torch.float64) / 2**32

    def step(self):
        seed = self.seed()
        log.debug("dropout seed %08x", seed)
        mask = (self.uniform(self.seed_dev + digest(self.run)) < KEEP).to(torch.float32) / KEEP
        hidden = torch.tanh(self.x @ self.w) * mask
        grad = self.x.t() @ (hidden - self.x) / BATCH
        self.w.sub_(grad, alpha=0.1)
        return hidden.square().mean()


def make():
    trainer = DropoutTrainer()
    trainer.vary()
    return SimpleNamespace(step=trainer.step, vary=trainer.vary)
