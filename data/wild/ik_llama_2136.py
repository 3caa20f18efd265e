"""openPangu: past some 600 tokens the output fell into a loop. A graph is captured again if the address of a
node's source changes, but copies are exempt, for what they write is found through a table that each step
refreshes. What they read is not: when the window over the cache steps to its next block, the graph goes on
copying the block before. Repaired by exempting only what a copy writes.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "ik_llama.cpp"
LINK = "https://github.com/ikawrakow/ik_llama.cpp/pull/2136"
MECHANISM = "incomplete-key"
CAUSE = "self.block"
LINE = 'return [src.data_ptr() for op, src in sources if op != "CPY"]'
EXECUTORS = ("emulated", "cuda")

BLOCKS, BLOCK, HEAD = 6, 4, 3


class CudaBackend:
    """Attention over a window of a cache, whose latent keys are copied to another type first."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.block = fixed, 0
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.cache = torch.arange(BLOCKS * BLOCK * HEAD, device=device).reshape(BLOCKS, BLOCK, HEAD) % 17
        self.query = torch.ones(1, HEAD, device=device)
        self.keys = torch.zeros(BLOCK, HEAD, device=device)
        self.graph, self.properties = None, None
        self.attention()  # loads what a capture cannot

    def node_properties(self) -> list[int]:
        sources = [("CPY", self.cache[self.block]), ("MUL_MAT", self.query), ("MUL_MAT", self.keys)]
        if self.fixed:
            return [src.data_ptr() for _, src in sources]
        return [src.data_ptr() for op, src in sources if op != "CPY"]

    def attention(self) -> torch.Tensor:
        self.keys.copy_(self.cache[self.block])
        return torch.softmax(self.query @ self.keys.T / 8, 1) @ self.keys

    def graph_compute(self) -> torch.Tensor:
        properties = self.node_properties()
        if properties != self.properties:
            self.graph, self.properties = capture(self.attention, backend=self.backend), properties
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = CudaBackend(fixed, device)
    numbers = torch.Generator().manual_seed(0)
    blocks = iter((0, 0, 1, 2, 3, 4, 5) * 8)

    def vary() -> None:
        backend.block = next(blocks)
        backend.query.copy_(torch.rand(1, HEAD, generator=numbers))

    return SimpleNamespace(
        step=backend.graph_compute, eager=backend.attention, own_graphs=True, vary=vary, backend=backend
    )
