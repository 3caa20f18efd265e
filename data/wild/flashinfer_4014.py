"""Attention by cuDNN was computed with the scale of another call: finite and plausible numbers, and wrong.
The library builds a graph for a call and keeps it in a table for the whole process, where a later call finds
it by shapes alone. The scale is a constant of the graph and was not part of the key, so that a layer with
another scale ran the graph of the layer before. Repaired by adding the scale to the key.
"""

import math
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "FlashInfer"
LINK = "https://github.com/flashinfer-ai/flashinfer/pull/4014"
MECHANISM = "incomplete-key"
CAUSE = "scale"
LINE = "key = (max_sequence_kv, q.shape, k_cache.shape)"
EXECUTORS = ("emulated", "cuda")

BATCH, HEADS, DIM, MAX_SEQUENCE_KV, LAYERS = 2, 2, 4, 6, 3


class CudnnDecode:
    """Decode attention by graphs that are built once for each kind of call."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.graphs: dict[tuple, SimpleNamespace] = {}

    def key_fn(self, q: torch.Tensor, k_cache: torch.Tensor, max_sequence_kv: int, scale: float) -> tuple:
        key = (max_sequence_kv, q.shape, k_cache.shape)
        return (*key, scale) if self.fixed else key

    def build_graph(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> SimpleNamespace:
        bound = [torch.zeros_like(tensor) for tensor in (q, k, v)]
        sdpa(*bound, scale)
        graph = capture(lambda: sdpa(*bound, scale), backend=self.backend)
        return SimpleNamespace(bound=bound, graph=graph)

    def run(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float
    ) -> torch.Tensor:
        key = self.key_fn(q, k_cache, MAX_SEQUENCE_KV, scale)
        if key not in self.graphs:
            self.graphs[key] = self.build_graph(q, k_cache, v_cache, scale)
        built = self.graphs[key]
        for bound, tensor in zip(built.bound, (q, k_cache, v_cache), strict=True):
            bound.copy_(tensor)
        built.graph.replay()
        return built.graph.outputs.clone()


def sdpa(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float) -> torch.Tensor:
    return (torch.softmax(q[:, :, None] @ k_cache.mT * scale, 3) @ v_cache)[:, :, 0]


class Layer:
    """Attention with a scale of its own, as models have that scale logits by layer."""

    def __init__(self, index: int, device: torch.device):
        numbers, shape = torch.Generator().manual_seed(index), (BATCH, HEADS, MAX_SEQUENCE_KV, DIM)
        self.k_cache, self.v_cache = (torch.randn(shape, generator=numbers).to(device) for _ in range(2))
        self.scale = (index + 1) / math.sqrt(DIM)

    def forward(self, hidden: torch.Tensor, attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        return hidden + attention(hidden, self.k_cache, self.v_cache, self.scale)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    decode, layers = CudnnDecode(fixed, device), [Layer(index, device) for index in range(LAYERS)]
    hidden, seeds = torch.ones(BATCH, HEADS, DIM, device=device), count()

    def forward(attention: Callable[..., torch.Tensor]) -> torch.Tensor:
        out = hidden
        for layer in layers:
            out = layer.forward(out, attention)
        return out

    def vary() -> None:
        numbers = torch.Generator().manual_seed(next(seeds))
        hidden.copy_(torch.randn(hidden.shape, generator=numbers))

    step, eager = (lambda run=run: forward(run) for run in (decode.run, sdpa))
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, decode=decode)
