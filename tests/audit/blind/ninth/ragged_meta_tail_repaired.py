"""Chunked prefill: ragged tokens of several requests packed into one fixed bucket."""

from types import SimpleNamespace

import torch

BUCKET = 16  # tokens in a step
MAX_REQS = 5
WIDTH = 12
MAX_CTX = 64
PLAN = [  # (tokens of this chunk, tokens that were computed before) for each request
    [(2, 0), (1, 4), (2, 0), (1, 9), (1, 3)],
    [(3, 0), (2, 2), (2, 0)],
    [(8, 1), (6, 0)],
    [(1, 8), (1, 0), (1, 2), (1, 1), (2, 5)],
    [(12, 0)],
    [(4, 0), (4, 4), (4, 8), (4, 12)],
    [(7, 2), (9, 0)],
    [(2, 7), (2, 0), (2, 1)],
]


class ForwardMeta:
    """Static metadata buffers that the captured forward reads."""

    def __init__(self):
        self.qsl = torch.zeros(MAX_REQS + 1, dtype=torch.long)
        self.computed = torch.zeros(MAX_REQS, dtype=torch.long)
        self.num_reqs = 0  # host copies, for the scheduler
        self.num_tokens = 0

    def build(self, chunks):
        n = len(chunks)
        starts = [0]
        for length, _ in chunks:
            starts.append(starts[-1] + length)
        self.num_reqs, self.num_tokens = n, starts[-1]
        self.qsl[: n + 1].copy_(torch.tensor(starts))
        self.qsl[n + 1 :].fill_(starts[-1])
        self.computed[:n].copy_(torch.tensor([c for _, c in chunks]))


class Prefill:
    def __init__(self, seed=11):
        self.gen = torch.Generator().manual_seed(seed)
        self.meta = ForwardMeta()
        self.w_qkv = torch.randn(WIDTH, 3 * WIDTH, generator=self.gen) / WIDTH**0.5
        self.w_out = torch.randn(WIDTH, WIDTH, generator=self.gen) / WIDTH**0.5
        self.pos_emb = torch.randn(MAX_CTX, WIDTH, generator=self.gen) * 0.5
        self.tokens = torch.zeros(BUCKET, WIDTH)
        self.iota = torch.arange(BUCKET)
        self.tick = 0

    def schedule(self):
        chunks = PLAN[self.tick % len(PLAN)]
        self.meta.build(chunks)
        fresh = torch.randn(self.meta.num_tokens, WIDTH, generator=self.gen)
        self.tokens[: self.meta.num_tokens].copy_(fresh)
        self.tick += 1

    def step(self):
        qsl = self.meta.qsl
        # request of every token: how many requests end at or before it
        owner = (self.iota[:, None] >= qsl[None, 1:]).sum(1)
        row = owner.clamp(max=MAX_REQS - 1)
        pos = self.iota - qsl[row] + self.meta.computed[row]
        packed = (self.iota < qsl[-1])[:, None]
        tokens = torch.where(packed, self.tokens, torch.zeros_like(self.tokens))
        x = tokens + self.pos_emb[pos.clamp(0, MAX_CTX - 1)]
        q, k, v = (x @ self.w_qkv).chunk(3, dim=-1)
        same = owner[:, None] == owner[None, :]
        causal = self.iota[:, None] >= self.iota[None, :]
        scores = (q @ k.t()) / WIDTH**0.5
        scores = torch.where(same & causal, scores, torch.full_like(scores, -1e30))
        y = (scores.softmax(-1) @ v) @ self.w_out + x
        last = (qsl[1:] - 1).clamp(min=0)
        return y[last]


def make():
    engine = Prefill()
    engine.schedule()
    return SimpleNamespace(step=engine.step, vary=engine.schedule, rows=lambda: engine.meta.num_reqs)
