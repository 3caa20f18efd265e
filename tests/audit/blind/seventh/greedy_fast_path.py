"""Sampler with a shortcut when no request asks for randomness."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, VOCAB, DIM = 6, 50, 16


@dataclass
class SamplingParams:
    temperature: float = 1.0
    seed: int = 0


class SamplingMetadata:
    def __init__(self):
        self.all_greedy = False
        self.temperature = torch.ones(ROWS, device=DEVICE)
        self.noise = torch.zeros(ROWS, VOCAB, device=DEVICE)

    def build(self, params, position):
        self.all_greedy = all(p.temperature < 1e-5 for p in params)
        self.temperature.copy_(torch.tensor([p.temperature for p in params]))
        rows = []
        for p in params:
            gen = torch.Generator().manual_seed(p.seed * 1000 + position)
            rows.append(torch.rand(VOCAB, generator=gen))
        self.noise.copy_(-(-torch.stack(rows).clamp_min(1e-9).log()).log())


class Sampler:
    """Gumbel-max sampling; rows with zero temperature take the argmax."""

    @staticmethod
    def greedy(logits):
        return logits.argmax(dim=-1)

    def __call__(self, logits, meta):
        greedy = self.greedy(logits)
        if meta.all_greedy:
            return greedy
        is_greedy = meta.temperature < 1e-5
        temp = torch.where(is_greedy, torch.ones_like(meta.temperature), meta.temperature)
        drawn = (logits / temp[:, None] + meta.noise).argmax(dim=-1)
        return torch.where(is_greedy, greedy, drawn)


class Engine:
    def __init__(self):
        gen = torch.Generator().manual_seed(221)
        self.head = torch.randn(DIM, VOCAB, generator=gen).to(DEVICE)
        self.hidden = torch.zeros(ROWS, DIM, device=DEVICE)
        self.meta = SamplingMetadata()
        self.sampler = Sampler()
        self.gen = torch.Generator().manual_seed(222)
        self.position = 0
        self.params = [SamplingParams(0.7 + 0.1 * i, seed=i) for i in range(ROWS)]
        self.prepare()

    def prepare(self):
        self.hidden.copy_(torch.randn(ROWS, DIM, generator=self.gen))
        self.meta.build(self.params, self.position)

    def schedule(self):
        self.position += 1
        if self.position in (2, 5):
            self.params = [SamplingParams(0.0, seed=i) for i in range(ROWS)]
        elif self.position == 3:
            self.params = [SamplingParams(1.3 * (i % 2), seed=9 + i) for i in range(ROWS)]
        elif self.position == 6:
            self.params[2] = SamplingParams(2.0, seed=77)
        self.prepare()


engine = Engine()


def step():
    return engine.sampler(engine.hidden @ engine.head, engine.meta)


def vary():
    engine.schedule()
