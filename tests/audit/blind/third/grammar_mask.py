"""Constrained decoding: host mirrors of what the sampler reads, uploaded at the head of each step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, VOCAB, DIM = 4, 24, 8


class Mirror:
    """A pinned host tensor and its twin on the device."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        self.host = torch.zeros(*shape, dtype=dtype, pin_memory=torch.cuda.is_available())
        self.twin = torch.zeros(*shape, dtype=dtype, device=DEVICE)
        self.edits = 0
        self._uploaded = -1

    @contextmanager
    def edit(self) -> Iterator[torch.Tensor]:
        yield self.host
        self.edits += 1

    def upload(self) -> torch.Tensor:
        self.twin.copy_(self.host, non_blocking=True)
        return self.twin


class SparseMirror(Mirror):
    """For what changes seldom and is large."""

    def upload(self) -> torch.Tensor:
        if self._uploaded != self.edits:
            super().upload()
            self._uploaded = self.edits
        return self.twin


class Automaton:
    """Digits, then letters, then a separator, round and round."""

    SPANS = ((0, 10), (0, 10), (10, 22), (10, 22), (22, 24))

    def __init__(self) -> None:
        self.state = 0

    def advance(self) -> bool:
        before = self.SPANS[self.state]
        self.state = (self.state + 1) % len(self.SPANS)
        return self.SPANS[self.state] != before

    def write(self, mask: torch.Tensor) -> None:
        low, high = self.SPANS[self.state]
        mask.fill_(-1e4)
        mask[:, low:high] = 0.0


class ConstrainedSampler:
    def __init__(self) -> None:
        gen = torch.Generator().manual_seed(3)
        self.head = torch.randn(DIM, VOCAB, generator=gen).to(DEVICE)
        self.embed = torch.randn(VOCAB, DIM, generator=gen).to(DEVICE)
        self.tokens = Mirror(BATCH, dtype=torch.long)
        self.mask = SparseMirror(BATCH, VOCAB)
        self.automaton = Automaton()
        with self.mask.edit() as mask:
            self.automaton.write(mask)

    def feed(self, tokens: torch.Tensor) -> None:
        with self.tokens.edit() as host:
            host.copy_(tokens)
        if self.automaton.advance():
            with self.mask.edit() as mask:
                self.automaton.write(mask)

    def probabilities(self) -> torch.Tensor:
        hidden = self.embed[self.tokens.upload()]
        return (hidden @ self.head + self.mask.upload()).softmax(-1)


sampler = ConstrainedSampler()
drafts = torch.Generator().manual_seed(8)


def step() -> torch.Tensor:
    return sampler.probabilities()


def vary() -> None:
    sampler.feed(torch.randint(0, VOCAB, (BATCH,), generator=drafts))
