"""Constrained decoding: the grammar writes a bitmask in pinned memory, the step brings it over."""

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, VOCAB, DIM = 2, 12, 5


class Grammar:
    """A tiny automaton: in each state some tokens may follow."""

    def __init__(self, stride: int) -> None:
        self.stride, self.state = stride, 0

    def allowed(self) -> list[int]:
        return [(self.state + i * self.stride) % VOCAB for i in range(4)]

    def advance(self) -> None:
        self.state = (self.state + 2 * self.stride + 1) % VOCAB


class GrammarBackend:
    def __init__(self, grammars: list[Grammar]) -> None:
        self.grammars = grammars
        self.bitmask = graphs.host(torch.zeros(len(grammars), dtype=torch.int64), pinned=True)
        self.filled = 0

    def fill(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for row, grammar in enumerate(self.grammars):
            self.bitmask[row] = sum(1 << token for token in set(grammar.allowed()))
        self.filled += 1


class Decoder:
    def __init__(self, backend: GrammarBackend) -> None:
        self.backend = backend
        self.bits = torch.zeros(BATCH, dtype=torch.int64, device=DEVICE)
        self.shifts = torch.arange(VOCAB, device=DEVICE)
        self.head = torch.sin(torch.arange(DIM * VOCAB, device=DEVICE) * 1.3).view(DIM, VOCAB)
        self.hidden = torch.zeros(BATCH, DIM, device=DEVICE)

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.bits.copy_(self.backend.bitmask, non_blocking=True)
        legal = (self.bits[:, None] >> self.shifts) & 1
        logits = (self.hidden @ self.head).masked_fill(legal == 0, -1e9)
        return logits.argmax(-1), logits.softmax(-1)


class Session:
    def __init__(self) -> None:
        self.backend = GrammarBackend([Grammar(1), Grammar(5)])
        self.decoder = Decoder(self.backend)
        self.turn = 0
        self.prepare()

    def prepare(self) -> None:
        self.backend.fill()
        self.decoder.hidden.copy_(torch.cos(torch.arange(BATCH * DIM) * 0.7 + self.turn).view(BATCH, DIM))

    def advance(self) -> None:
        self.turn += 1
        for grammar in self.backend.grammars:
            grammar.advance()
        self.prepare()

    def restart(self) -> None:
        self.turn = 0
        for grammar in self.backend.grammars:
            grammar.state = 0
        self.prepare()


session = Session()


def step():
    return session.decoder()


def vary():
    session.advance()


def reset():
    session.restart()
