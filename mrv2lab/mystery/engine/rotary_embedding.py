"""Rotary position embedding (arXiv 2104.09864) from a table that grows with the requests."""

from types import MethodType

import torch

from mrv2lab.mystery.engine.block_table import Parts
from mrv2lab.runner.config import RunnerConfig
from mrv2lab.runner.model import DecoderLayer, rms_norm

_STEP = 8  # rows added at once


class RotaryEmbedding:
    """Cosines and sines by position. Mirrors `RotaryEmbedding`, whose table is made at once."""

    def __init__(self, config: RunnerConfig, device: torch.device, parts: Parts):
        self.half, self.device = config.head_dim // 2, device
        # [max_model_len, head_dim]; rows from num_rows on are not made yet.
        self.cos_sin_cache = torch.zeros(config.max_model_len, config.head_dim, device=device)
        self.num_rows = 0
        self._extend = MethodType(parts["rotary_embedding.extend"], self)

    def cover(self, num_positions: int) -> None:
        """Make the rows of the first `num_positions` positions if they are missing; before the model runs."""
        wanted = min(-(-num_positions // _STEP) * _STEP, len(self.cos_sin_cache))
        if wanted > self.num_rows:
            self._extend(wanted)

    def rows(self, start: int, end: int) -> torch.Tensor:
        """[end - start, head_dim]: cosines, then sines."""
        frequency = 10000.0 ** (-torch.arange(self.half, device=self.device) / self.half)
        angle = torch.arange(start, end, device=self.device)[:, None] * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x: [num_tokens, num_heads, head_dim]."""
        cos, sin = self.cos_sin_cache[positions][:, None, :].chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def before_attention(
        self, layer: DecoderLayer, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value of a layer, each [num_tokens, num_heads, head_dim]."""
        q, k, v = (t.unflatten(-1, layer.heads) for t in layer.qkv_proj(rms_norm(x)).chunk(3, dim=-1))
        return self.rotate(q, positions), self.rotate(k, positions), v


# ---- rotary_embedding.extend ----


def extend_in_place(self: RotaryEmbedding, wanted: int) -> None:
    """Make rows up to `wanted`."""
    self.cos_sin_cache[self.num_rows : wanted].copy_(self.rows(self.num_rows, wanted))
    self.num_rows = wanted


def extend_anew(self: RotaryEmbedding, wanted: int) -> None:
    """Make rows up to `wanted`."""
    table = torch.zeros_like(self.cos_sin_cache)
    table[:wanted].copy_(self.rows(0, wanted))
    self.cos_sin_cache, self.num_rows = table, wanted
