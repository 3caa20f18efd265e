"""Decoding by a captured graph diverged once a text grew longer than the attention window of the model.
Kernels read the position from the device, but which kernel runs was decided on the host: whether the window
is shorter than what has been written so far. At the capture it was not, and no replay asks again. Repaired by
asking again at each place before a replay, and retiring the graph when an answer has changed.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "NNTrainer"
LINK = "https://github.com/nntrainer/nntrainer/pull/4317"
MECHANISM = "frozen-host-value"
CAUSE = "windowed"
LINE = "windowed = self.kv_regime_gt(layer.window)"
EXECUTORS = ("emulated", "cuda")

MAX_LEN, HEAD_DIM = 12, 4
WINDOWS = 3, MAX_LEN  # a local layer and a global one


class Layer:
    """A cache of keys and values, and how far back queries may look."""

    def __init__(self, window: int, device: torch.device):
        self.window = window
        self.keys, self.values = (torch.zeros(MAX_LEN, HEAD_DIM, device=device) for _ in range(2))


class CausalLM:
    """A decoder whose step is captured once and replayed for each token."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.layers = [Layer(window, device) for window in WINDOWS]
        self.slots = torch.arange(MAX_LEN, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.token = torch.ones(1, HEAD_DIM, device=device)
        self.key_count, self.graph, self.regime = 1, None, []

    def kv_regime_gt(self, bound: int) -> bool:
        """Whether there are more keys than `bound`."""
        return self.key_count > bound

    def attention(self, layer: Layer, hidden: torch.Tensor) -> torch.Tensor:
        layer.keys.index_copy_(0, self.position, hidden)
        layer.values.index_copy_(0, self.position, hidden * 0.5)
        scores = hidden @ layer.keys.T
        masked = self.slots > self.position
        windowed = self.kv_regime_gt(layer.window)
        if windowed:
            masked = masked | (self.slots <= self.position - layer.window)
        return torch.softmax(scores.masked_fill(masked, float("-inf")), 1) @ layer.values

    def decode(self) -> torch.Tensor:
        hidden = self.token
        for layer in self.layers:
            hidden = hidden + self.attention(layer, hidden)
        return hidden

    def run_decode(self) -> torch.Tensor:
        regime = [self.kv_regime_gt(layer.window) for layer in self.layers]
        if self.fixed and regime != self.regime:
            self.graph = None
        if self.graph is None:
            self.decode()  # writes what the replay then writes again
            self.graph, self.regime = capture(self.decode, backend=self.backend), regime
        self.graph.replay()
        return self.graph.outputs

    def feed(self, token: torch.Tensor) -> None:
        self.token.copy_(token)
        self.position.add_(1)
        self.key_count += 1


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model, text = CausalLM(fixed, device), torch.Generator().manual_seed(0)

    def vary() -> None:
        model.feed(torch.rand(1, HEAD_DIM, generator=text) * 2)

    return SimpleNamespace(
        step=model.run_decode, eager=model.decode, own_graphs=True, vary=vary, requests=6, model=model
    )
