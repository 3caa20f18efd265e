"""Decode with rotary tables that are memoised by the bucket of the longest sequence."""

from functools import lru_cache
from types import SimpleNamespace

import torch

BATCH, DIM = 6, 16
MAX_LEN, BUCKET = 160, 32


@lru_cache(maxsize=None)
def rope_table(bucket):
    """Cosines and sines, one copy a bucket so that the profiler tells them apart."""
    base = 10000.0 * (max(bucket, BUCKET) / bucket) ** (DIM / (DIM - 2))
    inv = base ** (-torch.arange(0, DIM, 2) / DIM)
    angle = torch.arange(MAX_LEN)[:, None] * inv
    return angle.cos(), angle.sin()


class RotaryDecode:
    def __init__(self, seed=31):
        self.gen = torch.Generator().manual_seed(seed)
        self.wq = torch.randn(DIM, DIM, generator=self.gen) / DIM**0.5
        self.keys = torch.randn(20, DIM, generator=self.gen)
        self.hidden = torch.zeros(BATCH, DIM)
        self.pos = torch.zeros(BATCH, dtype=torch.long)
        self.lengths = [9, 14, 20]
        self.bucket = BUCKET
        self.tick = 0

    def vary(self):
        self.tick += 1
        self.lengths = [n + 3 if n < MAX_LEN - 6 else 5 for n in self.lengths]
        if self.tick % 3 == 0 and len(self.lengths) < BATCH:
            self.lengths.append(2)  # a request joins
        live = len(self.lengths)
        self.bucket = -(-max(self.lengths) // BUCKET) * BUCKET
        self.pos[:live].copy_(torch.tensor(self.lengths) - 1)
        self.hidden[:live].copy_(torch.randn(live, DIM, generator=self.gen))

    def step(self):
        q = self.hidden @ self.wq
        cos, sin = rope_table(self.bucket)
        c, s = cos[self.pos], sin[self.pos]
        even, odd = q[:, 0::2], q[:, 1::2]
        turned = torch.cat([even * c - odd * s, even * s + odd * c], -1)
        return (turned @ self.keys.t()).softmax(-1)


def make():
    decode = RotaryDecode()
    decode.vary()
    return SimpleNamespace(step=decode.step, vary=decode.vary, rows=lambda: len(decode.lengths))
