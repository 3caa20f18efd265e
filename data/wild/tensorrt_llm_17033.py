"""A client that asked for temperature 1.0 was served at 0.7, in every request and for as long as the server
ran. So that graphs hold the sampling branch and not argmax, a capture pass sets a flag on the live metadata:
requests without parameters get synthetic ones. Each graph keeps a shallow copy of that metadata, flag
included, which takes the place of the live one before a replay; only the flag of the live one is cleared
after the pass. Repaired by clearing it on the kept copies as well.
"""

import copy
from dataclasses import dataclass
from itertools import cycle
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/17033"
MECHANISM = "left-behind"
CAUSE = "force_non_greedy_for_capture"
LINE = "metadata = copy.copy(self.spec_metadata)"
EXECUTORS = ("emulated", "cuda")

MAX_BATCH, VOCAB = 4, 8
CAPTURE_PARAMS = (0.7, 5)  # temperature, top_k


@dataclass
class SpecMetadata:
    temperatures: torch.Tensor
    top_ks: torch.Tensor
    all_greedy: bool = True
    force_non_greedy_for_capture: bool = False

    def populate_sampling_params(self, params: list[tuple[float, int] | None]) -> None:
        if self.force_non_greedy_for_capture:
            params = [CAPTURE_PARAMS for _ in params]
        self.all_greedy = not any(params)
        for n, each in enumerate(params):
            self.temperatures[n], self.top_ks[n] = each or (1.0, 1)


class ModelEngine:
    def __init__(self, fixed: bool, device: torch.device):
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.logits, self.noise = (torch.ones(MAX_BATCH, VOCAB, device=device) for _ in range(2))
        temperatures = torch.ones(MAX_BATCH, device=device)
        self.spec_metadata = SpecMetadata(temperatures, temperatures.long())
        self.params: list[tuple[float, int] | None] = [None]
        self.graphs, self.graph_metadata = {}, {}
        self.spec_metadata.force_non_greedy_for_capture = True
        for batch_size in (1, 2, 4):
            self.capture(batch_size)
        for metadata in (self.spec_metadata, *(self.graph_metadata.values() if fixed else ())):
            metadata.force_non_greedy_for_capture = False

    def capture(self, batch_size: int) -> None:
        metadata = copy.copy(self.spec_metadata)
        metadata.populate_sampling_params([None] * batch_size)
        self.graph_metadata[batch_size] = metadata
        self.sample(batch_size, metadata)
        self.graphs[batch_size] = capture(lambda: self.sample(batch_size, metadata), backend=self.backend)

    def sample(self, n: int, metadata: SpecMetadata) -> tuple[torch.Tensor, torch.Tensor]:
        if metadata.all_greedy:
            return self.logits[:n].argmax(1), torch.zeros_like(metadata.temperatures[:n])
        scaled = self.logits[:n] / metadata.temperatures[:n, None]
        least = scaled.sort(1, descending=True).values.gather(1, metadata.top_ks[:n, None] - 1)
        logprobs = torch.log_softmax(scaled.masked_fill(scaled < least, -1e9), 1)
        return (logprobs - self.noise[:n].log()).argmax(1), logprobs.max(1).values

    def forward(self, graphed: bool) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(self.params)
        metadata = self.graph_metadata[n] if graphed else self.spec_metadata
        metadata.populate_sampling_params(self.params)
        return (self.graphs[n].replay() or self.graphs[n].outputs) if graphed else self.sample(n, metadata)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    engine = ModelEngine(fixed, device)
    numbers = torch.Generator().manual_seed(0)
    asked = cycle([[(1.0, 8)], [(1.3, 3), (0.4, 8)], [(1.0, 2), (2.0, 6)], [(0.9, 4)] * 4])

    def vary() -> None:
        engine.params = next(asked)
        engine.logits.copy_(torch.randn(MAX_BATCH, VOCAB, generator=numbers))
        engine.noise.copy_(torch.rand(MAX_BATCH, VOCAB, generator=numbers).clamp_(0.1))

    step, eager = (lambda graphed=graphed: engine.forward(graphed) for graphed in (True, False))
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, engine=engine)
