"""Structured outputs: rows with a grammar get a bitmask over the vocabulary."""

from types import SimpleNamespace

import torch

BATCH, VOCAB = 8, 64
WORDS = VOCAB // 32


class GrammarSampler:
    def __init__(self, seed=53):
        self.gen = torch.Generator().manual_seed(seed)
        self.hidden = torch.zeros(BATCH, 16)
        self.head = torch.randn(16, VOCAB, generator=self.gen) / 4
        self.bitmask = torch.full((BATCH, WORDS), -1, dtype=torch.int32)
        self.shifts = torch.arange(32, dtype=torch.int32)
        self.live = 0
        self.constrained = []
        self.tick = 0

    def compile_masks(self):
        """The grammar's automaton says which tokens may come next."""
        self.bitmask[: self.live].fill_(-1)
        for row in self.constrained:
            words = torch.randint(1, 2**30, (WORDS,), generator=self.gen)
            self.bitmask[row].copy_(words)

    def vary(self):
        self.tick += 1
        self.live = 4 + self.tick % 4
        self.constrained = [0, 2]  # two long tool calls stay in the batch
        if self.tick >= 4:
            self.constrained.append(3 if self.tick % 2 else 1)
        self.compile_masks()
        self.hidden[: self.live].copy_(torch.randn(self.live, 16, generator=self.gen))

    def step(self):
        logits = self.hidden @ self.head
        if self.constrained:
            assert max(self.constrained) < len(self.bitmask)
            allowed = ((self.bitmask[..., None] >> self.shifts) & 1).bool().flatten(1)
            for row in range(len(self.bitmask)):
                logits[row].masked_fill_(~allowed[row], -1e9)
        return logits.argmax(-1), logits.logsumexp(-1)


def make():
    sampler = GrammarSampler()
    sampler.vary()
    return SimpleNamespace(step=sampler.step, vary=sampler.vary, rows=lambda: sampler.live)
