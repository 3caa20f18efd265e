"""Embedding service: ragged texts packed into one buffer, averaged text by text, scaled to length one."""

import math
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_TOKENS, MAX_TEXTS, HIDDEN, VOCAB = 24, 4, 16, 50
gen = torch.Generator().manual_seed(59)


@dataclass
class Workspace:
    sums: torch.Tensor
    counts: torch.Tensor


class Plans:
    """What a launch needs to know, made when it is first asked for."""

    def __init__(self) -> None:
        self.made: dict[tuple[int, int], torch.Tensor] = {}

    def positions(self, length: int, width: int) -> torch.Tensor:
        key = (length, width)
        if key not in self.made:
            at = torch.arange(length, device=DEVICE, dtype=torch.float32)
            rate = torch.exp(torch.arange(0, width, 2, device=DEVICE) * (-math.log(1e4) / width))
            angle = at[:, None] * rate
            self.made[key] = torch.cat([angle.sin(), angle.cos()], dim=1)
        return self.made[key]


class Pooler:
    def __init__(self) -> None:
        self.table = torch.randn(VOCAB, HIDDEN, generator=gen).to(DEVICE)
        self.project = (torch.randn(HIDDEN, HIDDEN, generator=gen) / math.sqrt(HIDDEN)).to(DEVICE)
        self.plans = Plans()
        self.workspace: Workspace | None = None

    def acquire(self) -> Workspace:
        if self.workspace is None:
            sums = torch.zeros(MAX_TEXTS + 1, HIDDEN, device=DEVICE)
            self.workspace = Workspace(sums, torch.zeros(MAX_TEXTS + 1, 1, device=DEVICE))
        return self.workspace

    def release(self) -> None:
        self.workspace = None

    def accumulate(self, x: torch.Tensor, text_of: torch.Tensor) -> None:
        space = self.acquire()
        space.sums.index_add_(0, text_of, x)
        space.counts.index_add_(0, text_of, torch.ones_like(x[:, :1]))

    def __call__(self, ids: torch.Tensor, at: torch.Tensor, text_of: torch.Tensor, out: torch.Tensor) -> None:
        x = torch.nn.functional.embedding(ids, self.table)
        x = x + self.plans.positions(MAX_TOKENS, HIDDEN)[at]
        self.accumulate(torch.tanh(x @ self.project), text_of)
        self.accumulate(x * 0.1, text_of)
        space = self.acquire()
        mean = space.sums / space.counts.clamp(min=1)
        out.copy_(torch.nn.functional.normalize(mean[:MAX_TEXTS], dim=-1))
        self.release()


class Service:
    def __init__(self) -> None:
        self.ids = torch.zeros(MAX_TOKENS, dtype=torch.long, device=DEVICE)
        self.at = torch.zeros(MAX_TOKENS, dtype=torch.long, device=DEVICE)
        self.text_of = torch.zeros(MAX_TOKENS, dtype=torch.long, device=DEVICE)
        self.vectors = torch.zeros(MAX_TEXTS, HIDDEN, device=DEVICE)
        self.pooler = Pooler()
        self.lengths: list[int] = []

    def submit(self, lengths: list[int]) -> None:
        used, self.lengths = sum(lengths), lengths
        text_of = [i for i, n in enumerate(lengths) for _ in range(n)]
        at = [j for n in lengths for j in range(n)]
        self.ids[:used].copy_(torch.randint(VOCAB, (used,), generator=gen))
        self.at[:used].copy_(torch.tensor(at))
        self.text_of.copy_(torch.tensor(text_of + [MAX_TEXTS] * (MAX_TOKENS - used)))


service = Service()
traffic = [[6, 6, 6, 6], [3, 10, 2, 4], [12, 1], [5], [2, 2, 2, 18], [7, 8, 9]]
count = 0
service.submit(traffic[0])


def step():
    service.pooler(service.ids, service.at, service.text_of, service.vectors)


def vary():
    global count
    count += 1
    service.submit(traffic[count % len(traffic)])


def rows():
    return len(service.lengths)
