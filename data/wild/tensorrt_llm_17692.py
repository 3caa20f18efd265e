"""Requests with a temperature were answered greedily, with graphs and drafts. So that dummy requests record
sampling under the key for sampling, an override is set while graphs are made. It was cleared after a pass
that only warms up, so that the capture, which comes in a second pass, recorded the greedy path. Proposed
repair: a pass that only warms up clears nothing.
"""

from types import SimpleNamespace

import torch

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/17692"
MECHANISM = "frozen-host-value"
CAUSE = "self.force_non_greedy"
LINE = "if self.force_non_greedy or self.temperatures_given:"
EXECUTORS = ("emulated", "cuda")

ROWS, VOCABULARY = 4, 12


class SpecMetadata:
    """What the sampler of a batch is to do."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.force_non_greedy, self.temperatures_given = fixed, True, False
        self.logits = torch.zeros(ROWS, VOCABULARY, device=device)
        self.temperatures = torch.ones(ROWS, 1, device=device)
        self.uniform = torch.full((ROWS, 1), 0.5, device=device)

    def sample(self) -> torch.Tensor:
        if self.force_non_greedy or self.temperatures_given:
            cdf = torch.softmax(self.logits / self.temperatures, 1).cumsum(1)
            return (cdf < self.uniform).sum(1)
        return self.logits.argmax(1)

    def clean_up(self, is_warmup_only: bool) -> None:
        if not (self.fixed and is_warmup_only):
            self.force_non_greedy = False


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    metadata = SpecMetadata(fixed, device)
    numbers = torch.Generator().manual_seed(0)

    def step() -> torch.Tensor:
        tokens = metadata.sample()
        metadata.clean_up(is_warmup_only=not torch.cuda.is_current_stream_capturing())
        return tokens

    def vary() -> None:
        metadata.temperatures_given = True
        metadata.temperatures.copy_(1 + torch.rand(ROWS, 1, generator=numbers))
        metadata.logits.copy_(3 * torch.rand(ROWS, VOCABULARY, generator=numbers))
        metadata.uniform.copy_(torch.rand(ROWS, 1, generator=numbers))

    return SimpleNamespace(step=step, vary=vary, metadata=metadata)
