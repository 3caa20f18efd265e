"""Beam search with two sets of beam buffers: one is read while the other one is written."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BEAMS, VOCAB, LENGTH = 3, 7, 8


@dataclass
class BeamBuffers:
    scores: torch.Tensor
    tokens: torch.Tensor

    @classmethod
    def empty(cls) -> "BeamBuffers":
        return cls(
            torch.zeros(BEAMS, device=DEVICE),
            torch.zeros(BEAMS, LENGTH, dtype=torch.int64, device=DEVICE),
        )

    def clear(self) -> None:
        self.scores.copy_(-torch.arange(BEAMS, dtype=torch.float32))
        self.tokens.zero_()


class BeamSearch:
    def __init__(self) -> None:
        self.buffers = (BeamBuffers.empty(), BeamBuffers.empty())
        self.front = 0
        self.logits = torch.zeros(BEAMS, VOCAB, device=DEVICE)
        self.begin()

    def begin(self) -> None:
        self.front = 0
        for buffers in self.buffers:
            buffers.clear()
        self.feed(0)

    def feed(self, turn: int) -> None:
        values = torch.sin(torch.arange(BEAMS * VOCAB, dtype=torch.float32) * 1.9 + 2.3 * turn)
        self.logits.copy_(values.view(BEAMS, VOCAB) * 2)

    def swap(self) -> None:
        self.front = 1 - self.front

    def expand(self) -> tuple[torch.Tensor, torch.Tensor]:
        source, target = self.buffers[self.front], self.buffers[1 - self.front]
        total = source.scores[:, None] + self.logits.log_softmax(-1)
        best, flat = total.view(-1).topk(BEAMS)
        parents, token = flat // VOCAB, flat % VOCAB
        history = source.tokens[parents]
        target.tokens[:, 1:].copy_(history[:, :-1])
        target.tokens[:, 0].copy_(token)
        target.scores.copy_(best)
        return target.scores, target.tokens


class Host:
    def __init__(self) -> None:
        self.search, self.turn = BeamSearch(), 0

    def advance(self) -> None:
        self.turn += 1
        self.search.swap()
        self.search.feed(self.turn)

    def restart(self) -> None:
        self.turn = 0
        self.search.begin()


host = Host()


def step():
    return host.search.expand()


def vary():
    host.advance()


def reset():
    host.restart()
