"""Speculative decoding with a mixture of experts drifted back to direct evaluation: no CUDA graph was ever
replayed while two batch sizes took turns. A graph is kept by the address of its first node, which both
sizes share, and is captured once its nodes have been the same twice in a row. Each turn finds the nodes of
the other size and starts again. Proposed repair (#28666): the extents of the first node belong to the key.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "llama.cpp"
LINK = "https://github.com/ggml-org/llama.cpp/issues/28652"
MECHANISM = "silent-eager"
SYMPTOM = "speed"
CAUSE = "first_node_ptr"
LINE = "key = (first_node_ptr, self.n_tokens) if self.fixed else first_node_ptr"
EXECUTORS = ("emulated", "cuda")

MAX_TOKENS, HEAD = 4, 3


class CudaBackend:
    """Graphs by key, each with the properties of the nodes that it was seen with last."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.n_tokens = fixed, 1
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.hidden = torch.ones(MAX_TOKENS, HEAD, device=device)
        self.experts = torch.linspace(-1, 1, HEAD * HEAD, device=device).view(HEAD, HEAD)
        self.cache: dict = {}

    def evaluate(self) -> torch.Tensor:
        return torch.softmax(self.hidden[: self.n_tokens] @ self.experts, 1) * self.hidden[: self.n_tokens]

    def graph_compute(self) -> torch.Tensor:
        first_node_ptr = self.hidden.data_ptr()
        key = (first_node_ptr, self.n_tokens) if self.fixed else first_node_ptr
        kept = self.cache.setdefault(key, SimpleNamespace(properties=None, graph=None))
        properties = [(self.hidden.data_ptr(), self.n_tokens, HEAD)]
        if kept.properties != properties:
            kept.properties, kept.graph = properties, None  # warms up again
            return self.evaluate()
        if kept.graph is None:
            kept.graph = capture(self.evaluate, backend=self.backend)
        kept.graph.replay()
        return kept.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = CudaBackend(fixed, device)
    sizes, numbers = iter((4, 1) * 8), torch.Generator().manual_seed(0)

    def vary() -> None:
        backend.n_tokens = next(sizes)
        backend.hidden.copy_(torch.rand(MAX_TOKENS, HEAD, generator=numbers))

    return SimpleNamespace(
        step=backend.graph_compute, eager=backend.evaluate, own_graphs=True, vary=vary, requests=6
    )
