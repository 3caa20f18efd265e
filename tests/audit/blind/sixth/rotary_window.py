"""Scores of a rotary attention window over notes of a conversation.

Rotations are tabulated for lengths of a power of two, and tables are kept. A conversation grows by a few
notes with each request.
"""

from functools import lru_cache

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH, LONGEST = 8, 64


@lru_cache(maxsize=4)
def rotations(length: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for all places below a length."""
    rates = base ** (-torch.arange(0, WIDTH, 2, device=DEVICE) / WIDTH)
    angles = torch.arange(length, device=DEVICE).unsqueeze(1) * rates
    return angles.cos(), angles.sin()


class Conversation:
    """Notes so far, in memory for the longest conversation there may be."""

    base = 100.0

    def __init__(self, seed: int, length: int):
        self.rng = torch.Generator().manual_seed(seed)
        self.keys = torch.randn(LONGEST, WIDTH, generator=self.rng).to(DEVICE)
        self.query = torch.randn(WIDTH, generator=self.rng).to(DEVICE)
        self.places = torch.arange(LONGEST, device=DEVICE)
        self.length = length
        self.end = torch.full((), length, device=DEVICE)

    @property
    def bucket(self) -> int:
        return 1 << (self.length - 1).bit_length()

    def grow(self, notes: int) -> None:
        new = torch.randn(notes, WIDTH, generator=self.rng)
        self.keys[self.length : self.length + notes].copy_(new)
        self.length += notes
        self.end.fill_(self.length)
        self.query.copy_(torch.randn(WIDTH, generator=self.rng))

    def scores(self) -> torch.Tensor:
        bucket = self.bucket
        cos, sin = rotations(bucket, self.base)
        even, odd = self.keys[:bucket, 0::2], self.keys[:bucket, 1::2]
        turned = torch.cat([even * cos - odd * sin, even * sin + odd * cos], 1)
        raw = turned @ self.query
        return raw.masked_fill(self.places[:bucket] >= self.end, float("-inf")).softmax(0)


talk = Conversation(71, 33)


def step():
    scores = talk.scores()
    return scores, scores.max()


def vary():
    talk.grow(1 + talk.length % 3)
    if talk.length > LONGEST - 4:
        talk.length = LONGEST // 2 + 1
        talk.end.fill_(talk.length)
