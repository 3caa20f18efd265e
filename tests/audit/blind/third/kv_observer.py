"""Int8 KV cache. The scale is observed over the first batches and stays as it is from then on."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

TOKENS, HEADS, DIM = 8, 2, 8
OBSERVED_BATCHES = 2


class ScalePolicy(ABC):
    def __init__(self, amax: torch.Tensor) -> None:
        self.amax = amax

    @abstractmethod
    def scale(self, states: torch.Tensor) -> torch.Tensor: ...

    def batch_done(self) -> ScalePolicy:
        return self


class Fixed(ScalePolicy):
    def scale(self, states: torch.Tensor) -> torch.Tensor:
        return self.amax / 127.0


class Observing(ScalePolicy):
    def __init__(self, amax: torch.Tensor, batches: int) -> None:
        super().__init__(amax)
        self.batches = batches

    def scale(self, states: torch.Tensor) -> torch.Tensor:
        seen = states.abs().amax(dim=(0, 2), keepdim=True)
        self.amax.copy_(torch.maximum(self.amax, seen))
        return self.amax / 127.0

    def batch_done(self) -> ScalePolicy:
        self.batches -= 1
        return self if self.batches >= 0 else Fixed(self.amax)


class QuantisedCache:
    def __init__(self, batches: int = OBSERVED_BATCHES) -> None:
        amax = torch.full((1, HEADS, 1), 1e-3, device=DEVICE)
        self.policy: ScalePolicy = Observing(amax, batches)
        self.pages = torch.zeros(TOKENS, HEADS, DIM, dtype=torch.int8, device=DEVICE)

    def write(self, states: torch.Tensor) -> torch.Tensor:
        scale = self.policy.scale(states)
        self.pages.copy_((states / scale).round().clamp(-127, 127))
        return scale

    def read(self, scale: torch.Tensor) -> torch.Tensor:
        return self.pages.to(torch.float32) * scale


class Attention:
    def __init__(self) -> None:
        self.cache = QuantisedCache()
        self.query = torch.zeros(HEADS, DIM, device=DEVICE)
        self.states = torch.zeros(TOKENS, HEADS, DIM, device=DEVICE)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        held = self.cache.read(self.cache.write(self.states))
        weights = torch.einsum("hd,thd->ht", self.query, held).softmax(-1)
        return torch.einsum("ht,thd->hd", weights, held), held


attention = Attention()
served = 0
prompts = torch.Generator().manual_seed(13)


def feed(loudness: float) -> None:
    attention.query.copy_(torch.randn(HEADS, DIM, generator=prompts) * 0.3)
    attention.states.copy_(torch.randn(TOKENS, HEADS, DIM, generator=prompts) * loudness)


feed(1.0)


def step() -> tuple[torch.Tensor, torch.Tensor]:
    return attention.forward()


def vary() -> None:
    global served
    served += 1
    attention.cache.policy = attention.cache.policy.batch_done()
    feed(1.0 + 0.6 * served)
