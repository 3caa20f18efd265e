"""MiniMax-M2: garbage with graphs, right without. Before each token the backend compares the properties of
all nodes with those of its graph, and captures again if they differ. It looked at a node's own shape and at
the addresses of its sources, but not at the shapes of these. As the context grows, views of the cache become
longer at the same address, and the product with the values keeps its shape: the old length stays in the
graph. Proposed repair: the sources' shapes belong to the properties.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ik_llama.cpp"
LINK = "https://github.com/ikawrakow/ik_llama.cpp/pull/2096"
MECHANISM = "incomplete-key"
CAUSE = "self.n_kv"
LINE = "return shape, [src.data_ptr() for src in sources]"
EXECUTORS = ("emulated", "cuda")

CONTEXT, PADDING, HEAD = 32, 8, 4


class CudaBackend:
    """Attention over the first `n_kv` tokens of a cache, captured again when its properties change."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.n_kv = fixed, PADDING
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.cache = torch.linspace(0, 1, CONTEXT * HEAD, device=device).reshape(CONTEXT, HEAD)
        self.query = torch.ones(1, HEAD, device=device)
        self.graph, self.properties = None, None
        self.attention()  # loads what a capture cannot

    def node_properties(self, shape: tuple[int, ...], sources: list[torch.Tensor]) -> tuple:
        if self.fixed:
            return shape, [(src.data_ptr(), src.shape) for src in sources]
        return shape, [src.data_ptr() for src in sources]

    def attention(self) -> torch.Tensor:
        values = self.cache[: self.n_kv]
        return torch.softmax(self.query @ values.T, 1) @ values

    def graph_compute(self) -> torch.Tensor:
        properties = self.node_properties((1, HEAD), [self.query, self.cache[: self.n_kv]])
        if properties != self.properties:
            self.graph, self.properties = capture(self.attention, backend=self.backend), properties
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = CudaBackend(fixed, device)
    numbers = torch.Generator().manual_seed(0)
    lengths = iter((8, 8, 16, 24, 32) * 8)

    def vary() -> None:
        backend.n_kv = next(lengths)
        backend.query.copy_(torch.rand(1, HEAD, generator=numbers))

    return SimpleNamespace(
        step=backend.graph_compute, eager=backend.attention, own_graphs=True, vary=vary, backend=backend
    )
