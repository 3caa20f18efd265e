"""RLHF: the sampler receives the policy's weights from the trainer between rollouts."""

from types import SimpleNamespace

import torch
from torch import nn

BATCH, DIM, VOCAB = 6, 12, 20


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(DIM, DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x):
        return self.head(torch.relu(self.up(x)))


class Sampler:
    def __init__(self, seed=127):
        self.gen = torch.Generator().manual_seed(seed)
        self.policy = Policy().requires_grad_(False)
        self.size = sum(p.numel() for p in self.policy.parameters())
        self.arena = torch.zeros(self.size)
        self.x = torch.zeros(BATCH, DIM)
        self.baseline = torch.zeros(())
        self.version = 0
        self.tick = 0
        self.receive(torch.randn(self.size, generator=self.gen) / DIM**0.5)

    def receive(self, flat):
        """One broadcast holds all parameters, flattened."""
        self.version += 1
        flat = self.arena.copy_(flat)
        start = 0
        for p in self.policy.parameters():
            p.data = flat[start : start + p.numel()].view(p.shape)
            start += p.numel()

    def vary(self):
        self.tick += 1
        if self.tick % 4 == 0:
            self.receive(torch.randn(self.size, generator=self.gen) / DIM**0.5)
        self.x.copy_(torch.randn(BATCH, DIM, generator=self.gen))

    def step(self):
        logits = self.policy(self.x)
        logp = logits.log_softmax(-1)
        best, token = logp.max(-1)
        self.baseline.mul_(0.9).add_(best.mean(), alpha=0.1)
        return token, best - self.baseline


def make():
    sampler = Sampler()
    sampler.vary()
    return SimpleNamespace(step=sampler.step, vary=sampler.vary)
