"""A captured decode step of Llama goes stale silently: replays turn each query as if it stood where the
captured token stood. The rotary embedding takes its row of the cosine and sine tables as a view, at an
offset that the host computes from a plain integer; a graph keeps the address of that row. Proposed repair:
a position in device memory that the caller sets before a replay, and a lookup of the tables by it.
"""

from itertools import count
from types import SimpleNamespace

import torch

PROJECT = "candle"
LINK = "https://github.com/huggingface/candle/issues/3728"
MECHANISM = "frozen-host-value"
CAUSE = "index_pos"
LINE = "return tuple(table.narrow(0, self.index_pos, 1) for table in (self.cos, self.sin))"
EXECUTORS = ("emulated", "cuda")

CONTEXT, HALF = 16, 4


class Cache:
    """Tables of angles, and keys and values of what was decoded."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.index_pos = fixed, 0
        inverse = 1 / 10 ** torch.linspace(0, 1, HALF, device=device)
        angles = torch.arange(CONTEXT, device=device)[:, None] * inverse
        self.cos, self.sin = angles.cos(), angles.sin()
        self.decode_position = torch.zeros(1, dtype=torch.int64, device=device)
        self.keys = torch.sin(torch.arange(CONTEXT * HALF * 2.0, device=device)).view(CONTEXT, 2 * HALF)

    def set_position(self, position: int) -> None:
        self.index_pos = position
        self.decode_position.fill_(position)

    def rotary(self) -> tuple[torch.Tensor, ...]:
        if self.fixed:
            position = self.decode_position
            return tuple(table.index_select(0, position) for table in (self.cos, self.sin))
        return tuple(table.narrow(0, self.index_pos, 1) for table in (self.cos, self.sin))


class CausalSelfAttention:
    def __init__(self, cache: Cache, device: torch.device):
        self.cache = cache
        self.query = torch.ones(1, 2 * HALF, device=device)

    def apply_rotary_emb(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cache.rotary()
        left, right = x[:, :HALF], x[:, HALF:]
        return torch.cat([left * cos - right * sin, right * cos + left * sin], 1)

    def forward(self) -> torch.Tensor:
        scores = self.apply_rotary_emb(self.query) @ self.cache.keys.T
        return torch.softmax(scores, 1) @ self.cache.keys


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    cache = Cache(fixed, device)
    attention = CausalSelfAttention(cache, device)
    positions = count(1)

    def vary() -> None:
        position = next(positions)
        cache.set_position(position)
        attention.query.fill_(1 + 0.1 * position)

    return SimpleNamespace(step=attention.forward, vary=vary, attention=attention)
