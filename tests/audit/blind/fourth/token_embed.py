"""First layer of a decode step: token and position embeddings, looked up in the way that is faster."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HIDDEN, VOCAB, MAX_LEN, FEW = 8, 16, 20, 32, 3
gen = torch.Generator().manual_seed(67)


class VocabEmbedding:
    def __init__(self) -> None:
        self.weight = torch.randn(VOCAB, HIDDEN, generator=gen).to(DEVICE)
        self.vocab = torch.arange(VOCAB, device=DEVICE)

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight.index_select(0, ids)

    def multiply(self, ids: torch.Tensor) -> torch.Tensor:
        chosen = (ids[:, None] == self.vocab).to(self.weight.dtype)
        return chosen @ self.weight


class Rotary:
    def __init__(self) -> None:
        rate = 1e4 ** (-torch.arange(0, HIDDEN, 2) / HIDDEN)
        angle = torch.arange(MAX_LEN)[:, None] * rate
        self.cos, self.sin = angle.cos().to(DEVICE), angle.sin().to(DEVICE)

    def __call__(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[at], self.sin[at]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Engine:
    def __init__(self) -> None:
        self.embedding, self.rotary = VocabEmbedding(), Rotary()
        self.proj = (torch.randn(HIDDEN, HIDDEN, generator=gen) / math.sqrt(HIDDEN)).to(DEVICE)
        self.ids = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.at = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.num_active = 0

    def schedule(self, ids: list[int], at: list[int]) -> None:
        """Rows without a request hold token 0 at position 0."""
        self.num_active = len(ids)
        empty = [0] * (BATCH - len(ids))
        self.ids.copy_(torch.tensor(ids + empty))
        self.at.copy_(torch.tensor(at + empty))

    def forward(self) -> torch.Tensor:
        if self.num_active <= FEW:
            x = self.embedding.gather(self.ids)
        else:
            x = self.embedding.multiply(self.ids)
        return self.rotary(x @ self.proj, self.at)


engine = Engine()
loads = [2, 2, 7, 3, 8, 5]
turn = 0


def draw() -> None:
    count = loads[turn % len(loads)]
    ids = torch.randint(VOCAB, (count,), generator=gen).tolist()
    at = torch.randint(MAX_LEN, (count,), generator=gen).tolist()
    engine.schedule(ids, at)


draw()


def step():
    return engine.forward()


def vary():
    global turn
    turn += 1
    draw()


def rows():
    return engine.num_active
