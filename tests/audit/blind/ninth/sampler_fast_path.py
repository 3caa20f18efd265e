"""Sampler with per-request temperature and top-k, and grammar masks."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

BATCH, WIDTH, VOCAB = 5, 12, 40
EPS = 1e-5


@dataclass(frozen=True)
class Params:
    temperature: float = 0.0
    top_k: int = VOCAB
    grammar: bool = False


GREEDY = Params()
HOT = Params(temperature=1.3, top_k=20)
WARM = Params(temperature=0.9, top_k=30, grammar=True)
STRICT = Params(grammar=True)
MIX = [
    [GREEDY, STRICT, GREEDY, GREEDY],
    [HOT, WARM, HOT, HOT, WARM],
    [GREEDY, HOT, STRICT, WARM],
    [STRICT, GREEDY, STRICT],
    [WARM, HOT, HOT, WARM],
    [HOT, STRICT, GREEDY, WARM, HOT],
    [GREEDY, HOT],
]


class Batch:
    """Sampling metadata on the device, with flags for the host."""

    def __init__(self):
        self.temperature = torch.zeros(BATCH)
        self.top_k = torch.full((BATCH,), VOCAB)
        self.allowed = torch.ones(BATCH, VOCAB, dtype=torch.bool)
        self.gumbel = torch.zeros(BATCH, VOCAB)
        self.size = 0

    def load(self, params, gen):
        n = self.size = len(params)
        self.temperature.zero_()
        self.temperature[:n].copy_(torch.tensor([p.temperature for p in params]))
        self.top_k[:n].copy_(torch.tensor([p.top_k for p in params]))
        self.allowed.fill_(True)
        for row, p in enumerate(params):
            if p.grammar:
                self.allowed[row].copy_(torch.rand(VOCAB, generator=gen) < 0.4)
                self.allowed[row, 0] = True
        noise = torch.rand(BATCH, VOCAB, generator=gen).clamp(1e-6, 1 - 1e-6)
        self.gumbel.copy_(-torch.log(-torch.log(noise)))
        self.all_greedy = all(p.temperature < EPS for p in params)
        self.all_random = all(p.temperature >= EPS for p in params)


class Sampler:
    def __init__(self, seed=29):
        self.gen = torch.Generator().manual_seed(seed)
        self.head = torch.randn(WIDTH, VOCAB, generator=self.gen) / WIDTH**0.5
        self.hidden = torch.zeros(BATCH, WIDTH)
        self.batch, self.tick = Batch(), 0
        self.vary()

    def vary(self):
        self.hidden.copy_(torch.randn(BATCH, WIDTH, generator=self.gen))
        self.batch.load(MIX[self.tick % len(MIX)], self.gen)
        self.tick += 1

    def step(self):
        b = self.batch
        logits = (self.hidden @ self.head).masked_fill(~b.allowed, float("-inf"))
        greedy = logits.argmax(-1)
        if b.all_greedy:
            return greedy
        temperature = torch.where(b.temperature < EPS, 1.0, b.temperature)
        scaled = logits / temperature[:, None]
        ranked = scaled.sort(dim=-1, descending=True).values
        floor = ranked.gather(1, (b.top_k - 1)[:, None])
        scaled = scaled.masked_fill(scaled < floor, float("-inf"))
        random = (scaled + b.gumbel).argmax(-1)
        return random if b.all_random else torch.where(b.temperature < EPS, greedy, random)


def make():
    sampler = Sampler()
    return SimpleNamespace(step=sampler.step, vary=sampler.vary, rows=lambda: sampler.batch.size)
