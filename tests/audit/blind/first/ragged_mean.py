"""Pooling over documents of different lengths in one long buffer that is never cleared."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_TOKENS, MAX_DOCS, DIM = 16, 4, 5


@dataclass
class Documents:
    lengths: list[int]

    @property
    def offsets(self) -> list[int]:
        ends = [0]
        for length in self.lengths:
            ends.append(ends[-1] + length)
        return ends + [ends[-1]] * (MAX_DOCS - len(self.lengths))


class Pooler:
    def __init__(self) -> None:
        self.hidden = torch.full((MAX_TOKENS, DIM), float("nan"), device=DEVICE)
        self.offsets = torch.zeros(MAX_DOCS + 1, dtype=torch.int64, device=DEVICE)
        self.mix = torch.sin(torch.arange(DIM * DIM, device=DEVICE) * 0.6).view(DIM, DIM)

    def load(self, documents: Documents, shift: float) -> None:
        count = documents.offsets[-1]
        values = torch.cos(torch.arange(count * DIM, dtype=torch.float32) * 0.7 + shift)
        self.hidden[:count].copy_(values.view(count, DIM))
        self.offsets.copy_(torch.tensor(documents.offsets))

    def __call__(self) -> torch.Tensor:
        token = torch.arange(MAX_TOKENS, device=DEVICE)
        owner = torch.bucketize(token, self.offsets[1:], right=True)
        is_real = token < self.offsets[-1]
        projected = torch.tanh(self.hidden @ self.mix)
        projected = torch.where(is_real[:, None], projected, torch.zeros_like(projected))
        sums = torch.zeros(MAX_DOCS, DIM, device=DEVICE)
        sums.index_add_(0, owner.clamp(max=MAX_DOCS - 1), projected)
        lengths = (self.offsets[1:] - self.offsets[:-1]).clamp(min=1)
        return torch.nn.functional.normalize(sums / lengths[:, None], dim=-1)


class Host:
    traffic = ([3, 2], [5, 1, 4], [2], [6, 3, 1, 2], [1, 1])

    def __init__(self) -> None:
        self.pooler, self.turn = Pooler(), 0
        self.load()

    def load(self) -> None:
        self.documents = Documents(self.traffic[self.turn % len(self.traffic)])
        self.pooler.load(self.documents, shift=0.5 * self.turn)


host = Host()


def step():
    return host.pooler()


def vary():
    host.turn += 1
    host.load()


def reset():
    host.turn = 0
    host.load()
