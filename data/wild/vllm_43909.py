"""Gemma 4 with drafts and tensor parallelism: an illegal memory access in the replay of the drafts' sampling
graphs. The weight of the head is put together from its shards into a temporary of the function that
captures. The graph reads its memory; nobody else holds it once that function has returned. Repaired by
keeping it.
"""

import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/43909"
MECHANISM = "liveness"
CAUSE = "lm_head_weight"
LINE = "lm_head_weight = torch.cat(self.shards)"
EXECUTORS = ("emulated", "cuda")

ROWS, HIDDEN, SHARD = 4, 8, 1 << 16


class Speculator:
    """Samples the tokens of drafts greedily."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.shards = [torch.arange(SHARD * HIDDEN, device=device).reshape(SHARD, -1) % m / m for m in (7, 5)]
        self.hidden = torch.ones(ROWS, HIDDEN, device=device)
        self.kept: list[torch.Tensor] = []
        self.scope = self.capture_model()
        self.weight_of_capture = next(self.scope)

    def capture_model(self) -> Iterator["weakref.ref[torch.Tensor]"]:
        """The function that captures; its temporaries live until it is closed."""
        lm_head_weight = torch.cat(self.shards)
        if self.fixed:
            self.kept.append(lm_head_weight)
        yield weakref.ref(lm_head_weight)

    def greedy_sample(self) -> torch.Tensor:
        weight = self.weight_of_capture()
        if weight is None:  # sizes without a graph gather anew
            weight = torch.cat(self.shards)
        return (self.hidden @ weight.T).amax(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    speculator = Speculator(fixed, device)
    numbers = torch.Generator().manual_seed(0)
    activations: list[torch.Tensor] = []

    def vary() -> None:
        speculator.scope.close()  # the function has returned
        activations.append(torch.full((2 * SHARD, HIDDEN), 9.0, device=device))
        speculator.hidden.copy_(torch.rand(ROWS, HIDDEN, generator=numbers))

    return SimpleNamespace(step=speculator.greedy_sample, vary=vary, speculator=speculator)
