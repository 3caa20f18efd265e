"""With a static cache and graphs generations were wrong when the model made its cache positions itself: a
maintainer tried it and wrote why it cannot work. The positions are a range that starts at a count of seen
tokens, which the cache keeps as an integer; a graph that is not given them as an input writes every key to
the slot of the captured step. Repaired by letting `generate` hold the positions and pass them in.
"""

from functools import partial
from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Transformers"
LINK = "https://github.com/huggingface/transformers/pull/29221"
MECHANISM = "frozen-host-value"
CAUSE = "seen_tokens"
LINE = "cache_position = torch.arange(seen, seen + length, device=hidden.device)"
EXECUTORS = ("emulated", "cuda")

MAX_CACHE_LEN, DIM = 12, 4


class StaticCache:
    def __init__(self, device: torch.device):
        self.key_cache, self.value_cache = (torch.zeros(MAX_CACHE_LEN, DIM, device=device) for _ in range(2))
        self.seen_tokens = 0

    def update(self, key: torch.Tensor, value: torch.Tensor, position: torch.Tensor) -> None:
        self.key_cache.index_copy_(0, position, key)
        self.value_cache.index_copy_(0, position, value)
        self.seen_tokens += len(key)


class LlamaModel:
    def __init__(self, device: torch.device):
        self.k_proj = torch.eye(DIM, device=device).roll(1, 0)
        self.slots = torch.arange(MAX_CACHE_LEN, device=device)

    def forward(self, hidden: torch.Tensor, cache: StaticCache, cache_position: torch.Tensor | None):
        length = len(hidden)
        if cache_position is None:
            seen = cache.seen_tokens
            cache_position = torch.arange(seen, seen + length, device=hidden.device)
        cache.update(hidden @ self.k_proj, hidden * 2, cache_position)
        scores = hidden @ cache.key_cache.T
        scores = scores.masked_fill(self.slots > cache_position[:, None], float("-inf"))
        return torch.softmax(scores, 1) @ cache.value_cache


class Generation:
    """Decodes token by token: one step eagerly, the rest from a graph."""

    def __init__(self, fixed: bool, device: torch.device):
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.model, self.cache = LlamaModel(device), StaticCache(device)
        self.hidden = torch.ones(1, DIM, device=device)
        self.cache_position = torch.zeros(1, dtype=torch.int64, device=device) if fixed else None
        self.graph, self.steps = None, 0

    def forward(self) -> torch.Tensor:
        return self.model.forward(self.hidden, self.cache, self.cache_position)

    def decode(self, compiled: bool) -> torch.Tensor:
        if compiled and self.steps and self.graph is None:
            self.graph = capture(self.forward, backend=self.backend)
        if self.graph is None:
            logits = self.forward()
        else:
            self.graph.replay()
            logits = self.graph.outputs.clone()
        self.steps += 1
        if self.cache_position is not None:
            self.cache_position.add_(1)
        return logits


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    generation, tokens = Generation(fixed, device), count(1)

    def vary() -> None:
        token = next(tokens)
        generation.hidden.copy_(torch.sin(torch.arange(DIM) + token * 1.0))

    step, eager = partial(generation.decode, True), partial(generation.decode, False)
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, requests=5, model=generation)
