"""Decode attention with two sets of rotary factors: one for prompts inside the trained
length, one for prompts beyond it."""

from dataclasses import dataclass, field
from functools import partial

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class RopeConfig:
    dim: int = 8
    base: float = 100.0
    trained_len: int = 32
    max_len: int = 128
    short_factor: float = 1.0
    long_factor: float = 3.5


@dataclass
class EngineConfig:
    batch: int = 2
    rope: RopeConfig = field(default_factory=RopeConfig)


def build_table(cfg, factor):
    inv = cfg.base ** (-torch.arange(0, cfg.dim, 2).float() / cfg.dim) / factor
    angle = torch.outer(torch.arange(cfg.max_len).float(), inv)
    return torch.stack([angle.cos(), angle.sin()], dim=1).to(DEVICE)


def rotate(x, pos, *, table):
    cos, sin = table[pos].unbind(1)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


class RotaryEmbedding:
    def __init__(self, cfg):
        self.cfg = cfg
        self._kinds = {
            "short": partial(rotate, table=build_table(cfg, cfg.short_factor)),
            "long": partial(rotate, table=build_table(cfg, cfg.long_factor)),
        }
        self.apply = self._kinds["short"]

    def fit(self, longest):
        self.apply = self._kinds["long" if longest > self.cfg.trained_len else "short"]


class DecodeRunner:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rope = RotaryEmbedding(cfg.rope)
        gen = torch.Generator().manual_seed(2)
        d = cfg.rope.dim
        self.keys = torch.randn(cfg.rope.max_len, d, generator=gen).to(DEVICE)
        self.values = torch.randn(cfg.rope.max_len, d, generator=gen).to(DEVICE)
        self.key_pos = torch.arange(cfg.rope.max_len, device=DEVICE)
        self.q = torch.zeros(cfg.batch, d, device=DEVICE)
        self.pos = torch.zeros(cfg.batch, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(21)
        self.lengths = [[20, 11], [24, 30], [70, 12], [90, 44], [31, 9], [100, 64]]
        self.turn = 0
        self.admit()

    def admit(self):
        lens = self.lengths[self.turn % len(self.lengths)]
        self.turn += 1
        self.pos.copy_(torch.tensor(lens) - 1)
        self.q.copy_(torch.randn(self.q.shape, generator=self.gen))
        self.rope.fit(max(lens))

    def attend(self):
        q = self.rope.apply(self.q, self.pos)
        k = self.rope.apply(self.keys, self.key_pos)
        att = q @ k.T / self.cfg.rope.dim**0.5
        att = att.masked_fill(self.key_pos[None, :] > self.pos[:, None], float("-inf"))
        return att.softmax(-1) @ self.values


runner = DecodeRunner(EngineConfig())


@torch.no_grad()
def step():
    return runner.attend()


def vary():
    runner.admit()
