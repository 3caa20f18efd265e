"""Async scheduling: the host works on the result of a step while the next one runs."""

from collections import deque
from types import SimpleNamespace

import torch

ROWS, WIDTH, VOCAB = 4, 10, 50
DEPTH = 2  # steps in flight before their tokens are looked at


class Model:
    def __init__(self, gen):
        self.emb = torch.randn(VOCAB, WIDTH, generator=gen)
        self.ban_emb = torch.randn(VOCAB, WIDTH, generator=gen)
        self.w = torch.randn(WIDTH, WIDTH, generator=gen) / WIDTH**0.5
        self.head = torch.randn(WIDTH, VOCAB, generator=gen)

    def __call__(self, ids, recent, noise):
        h = torch.tanh((self.emb[ids] + 0.7 * self.ban_emb[recent]) @ self.w)
        return h @ self.head + noise


class AsyncEngine:
    def __init__(self, seed=47):
        self.gen = torch.Generator().manual_seed(seed)
        self.model = Model(self.gen)
        self.ids = torch.zeros(ROWS, dtype=torch.long)
        self.recent = torch.zeros(ROWS, dtype=torch.long)
        self.noise = torch.zeros(ROWS, VOCAB)
        self.last_tokens = torch.zeros(ROWS, dtype=torch.long)
        self.inflight = deque()
        self.launched = 0
        self.retired = 0

    def retire(self, tokens):
        """Bookkeeping of a finished step: its tokens condition the penalties."""
        self.recent.copy_(tokens)
        self.retired += 1

    def vary(self):
        # the step launched last is still running: queue it, look at an older one
        # (the first batch is the profile run, nobody wants its tokens)
        if self.launched > 1:
            self.inflight.append(self.last_tokens.clone())
        if len(self.inflight) >= DEPTH:
            self.retire(self.inflight.popleft())
        fresh = torch.randint(0, VOCAB, (ROWS,), generator=self.gen)
        self.ids.copy_(fresh)
        self.noise.copy_(torch.randn(ROWS, VOCAB, generator=self.gen) * 0.1)
        self.launched += 1

    def step(self):
        logits = self.model(self.ids, self.recent, self.noise)
        top = logits.topk(2, dim=-1)
        tokens = top.indices[:, 0]
        margin = top.values[:, 0] - top.values[:, 1]
        self.last_tokens = tokens
        return tokens, margin


def make():
    engine = AsyncEngine()
    return SimpleNamespace(step=engine.step, vary=engine.vary, rows=lambda: ROWS)
