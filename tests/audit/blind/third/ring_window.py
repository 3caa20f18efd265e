"""Attention over a sliding window, its keys and values in a ring of half-precision slots."""

from typing import NamedTuple

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

WINDOW, HEADS, DIM = 12, 2, 8


class Window(NamedTuple):
    keys: torch.Tensor
    values: torch.Tensor


class Ring:
    """One allocation, keys in even rows and values in odd ones."""

    def __init__(self) -> None:
        self._slab = torch.zeros(2 * WINDOW, HEADS, DIM, dtype=torch.bfloat16, device=DEVICE)
        self.held = torch.zeros((), dtype=torch.long, device=DEVICE)
        self.head = 0
        self.window = self._views()

    def _views(self) -> Window:
        return Window(self._slab[0::2].transpose(0, 1), self._slab[1::2].transpose(0, 1))

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        for key, value in zip(keys, values, strict=True):
            slot = self.head % WINDOW
            self._slab[2 * slot].copy_(key)
            self._slab[2 * slot + 1].copy_(value)
            self.head += 1
        self.held.fill_(min(self.head, WINDOW))
        self.window = self._views()

    def clear(self) -> None:
        self.head = 0
        self.held.zero_()
        self._slab = self._slab.zero_()
        self.window = self._views()


class WindowAttention:
    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.query = torch.zeros(HEADS, DIM, device=DEVICE)
        self.sink = torch.full((HEADS, 1), 0.3, device=DEVICE)
        self.slots = torch.arange(WINDOW, device=DEVICE)

    def forward(self) -> torch.Tensor:
        keys, values = (part.to(self.query.dtype) for part in self.ring.window)
        scores = torch.einsum("hd,hwd->hw", self.query, keys) * DIM**-0.5
        scores = scores.masked_fill(self.slots >= self.ring.held, float("-inf"))
        weights = torch.cat((scores, self.sink), dim=-1).softmax(-1)[:, :-1]
        return torch.einsum("hw,hwd->hd", weights, values)


ring = Ring()
attention = WindowAttention(ring)
prompts = torch.Generator().manual_seed(71)
served = 0


def vary() -> None:
    global served
    served += 1
    if served % 8 == 0:
        ring.clear()
    burst = 1 + served % 4
    ring.append(
        torch.randn(burst, HEADS, DIM, generator=prompts), torch.randn(burst, HEADS, DIM, generator=prompts)
    )
    attention.query.copy_(torch.randn(HEADS, DIM, generator=prompts))


vary()


def step() -> torch.Tensor:
    return attention.forward()
