"""Clipping by attention logits with graphs: the first step of training saw the largest logits of some
microbatches only, later steps none at all. Each forward pass keeps the maximum so far in an attribute,
which the clipping reads and sets to None. In a graph the attribute is set once, by the capture. Proposed
repair: a buffer that is written in place and cleared by the reader.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Megatron-LM"
LINK = "https://github.com/NVIDIA/Megatron-LM/pull/7518"
MECHANISM = "left-behind"
CAUSE = "self.current_max_attn_logits"
LINE = "self.current_max_attn_logits = highest"
EXECUTORS = ("emulated", "cuda")

ROWS, HEAD, THRESHOLD = 3, 4, 1.0


class Attention:
    """Its weight is scaled down where logits get too large."""

    def __init__(self, device: torch.device):
        self.weight = torch.ones(1, device=device)
        self.hidden = torch.ones(ROWS, HEAD, device=device)
        self.reset()

    def reset(self) -> None:
        self.current_max_attn_logits: torch.Tensor | None = None

    def forward(self) -> torch.Tensor:
        logits = (self.hidden * self.weight) @ self.hidden.T
        self.keep(logits.amax()[None])
        return torch.softmax(logits, 1) @ self.hidden

    def keep(self, highest: torch.Tensor) -> None:
        if self.current_max_attn_logits is not None:
            highest = torch.maximum(highest, self.current_max_attn_logits)
        self.current_max_attn_logits = highest

    def clip(self) -> None:
        if self.current_max_attn_logits is not None:
            self.weight.mul_((THRESHOLD / self.current_max_attn_logits).clamp(max=1))
        self.reset()


class FixedAttention(Attention):
    """Keeps the maximum in a buffer."""

    def __init__(self, device: torch.device):
        self.max_attn_logits = torch.zeros(1, device=device)
        super().__init__(device)

    def reset(self) -> None:
        self.max_attn_logits.zero_()

    def keep(self, highest: torch.Tensor) -> None:
        torch.maximum(highest, self.max_attn_logits, out=self.max_attn_logits)

    def clip(self) -> None:
        self.weight.mul_((THRESHOLD / self.max_attn_logits).clamp(max=1))
        self.reset()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    attention = FixedAttention(device) if fixed else Attention(device)
    microbatches, numbers = count(1), torch.Generator().manual_seed(0)
    attention.forward()  # warms up
    attention.reset()  # what warming up has left
    graph = capture(attention.forward, backend="cuda" if device.type == "cuda" else "emulated")

    def replay() -> torch.Tensor:
        graph.replay()
        return graph.outputs

    def vary() -> None:
        if next(microbatches) % 2 == 0:  # a step of training has two
            attention.clip()
        attention.hidden.copy_(torch.rand(ROWS, HEAD, generator=numbers) * 2)

    return SimpleNamespace(
        step=replay, eager=attention.forward, own_graphs=True, vary=vary, requests=6, attention=attention
    )
