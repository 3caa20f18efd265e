"""Rotary embedding without a table: angles come from the positions, with YaRN-like ramps."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(eq=False)
class RopeConfig:
    head_dim: int = 8
    base: float = 500.0
    factor: float = 4.0
    original_length: int = 16
    beta: tuple[float, float] = (32.0, 1.0)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        def at(rotations: float) -> float:
            length = self.original_length / (rotations * 2 * math.pi)
            return self.head_dim * math.log(length) / (2 * math.log(self.base))

        low, high = (at(b) for b in self.beta)
        return max(math.floor(low), 0), min(math.ceil(high), self.head_dim - 1)

    @cached_property
    def attention_factor(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0


class Rope:
    def __init__(self, config: RopeConfig) -> None:
        self.config = config
        self.calls = 0

    def inv_freq(self) -> torch.Tensor:
        c = self.config
        exponent = torch.arange(0, c.head_dim, 2, dtype=torch.float32, device=DEVICE) / c.head_dim
        plain = torch.pow(torch.full_like(exponent, c.base), -exponent)
        low, high = c.bounds
        index = torch.arange(c.head_dim // 2, dtype=torch.float32, device=DEVICE)
        ramp = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain / c.factor * ramp + plain * (1 - ramp)

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        angles = positions[:, None].float() * self.inv_freq()
        cos, sin = angles.cos() * self.config.attention_factor, angles.sin() * self.config.attention_factor
        left, right = x[..., ::2], x[..., 1::2]
        return torch.stack([left * cos - right * sin, left * sin + right * cos], -1).flatten(-2)


class Inputs:
    def __init__(self, tokens: int, dim: int) -> None:
        self.x = torch.zeros(tokens, dim, device=DEVICE)
        self.positions = torch.zeros(tokens, dtype=torch.int64, device=DEVICE)
        self.turn = 0

    def fill(self, turn: int) -> None:
        self.turn = turn
        self.x.copy_(torch.sin(torch.arange(self.x.numel()) * 0.3 + turn).view_as(self.x))
        self.positions.copy_(torch.arange(len(self.positions)) * 2 + turn * turn)


rope, inputs = Rope(RopeConfig()), Inputs(3, 8)
inputs.fill(0)


def step():
    return rope(inputs.x, inputs.positions)


def vary():
    inputs.fill(inputs.turn + 1)


def reset():
    inputs.fill(0)
