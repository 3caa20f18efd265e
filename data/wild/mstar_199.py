"""A speech model samples twice in one step: the talker the first codec group, with the parameters of each
request, and the code predictor all others, with a second configuration. The second sampler takes its
temperature and top-k as Python numbers. A graph keeps the divisor and the number as they were at capture, so
that all later requests are sampled alike, without an error. Repaired by a second full sampler, whose
parameters lie in device memory like those of the first.
"""

from dataclasses import dataclass
from itertools import cycle
from types import SimpleNamespace

import torch

PROJECT = "mstar"
LINK = "https://github.com/mstar-project/mstar/issues/199"
MECHANISM = "frozen-host-value"
CAUSE = "temperature"
LINE = "scaled = logits / temperature"
EXECUTORS = ("emulated", "cuda")

BATCH, HIDDEN, VOCAB, GROUPS = 2, 4, 6, 3


@dataclass(frozen=True)
class SamplingConfig:
    temperature: float = 1.0
    top_k: int = VOCAB


class CudaGraphableSampler:
    def __init__(self, device: torch.device):
        self.temperature_buf = torch.ones(BATCH, 1, device=device)
        self.top_k_buf = torch.full((BATCH, 1), VOCAB, dtype=torch.int64, device=device)
        self.noise_buf = torch.full((BATCH, VOCAB), 0.5, device=device)

    def plan(self, configs: list[SamplingConfig]) -> None:
        self.temperature_buf.copy_(torch.tensor([[config.temperature] for config in configs]))
        self.top_k_buf.copy_(torch.tensor([[config.top_k] for config in configs]))

    def sample(self, logits: torch.Tensor) -> torch.Tensor:
        return self.draw(logits / self.temperature_buf, self.top_k_buf)

    def sample_with_config(self, logits: torch.Tensor, temperature: float, top_k: int) -> torch.Tensor:
        scaled = logits / temperature
        return self.draw(scaled, torch.full_like(self.top_k_buf, top_k))

    def draw(self, scaled: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
        least = scaled.sort(1, descending=True).values.gather(1, top_k - 1)
        return (scaled.masked_fill(scaled < least, -1e9) - self.noise_buf.log()).argmax(1)


class Talker:
    """A step of speech: group 0 from the language model, the others from a predictor, one after another."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, weights = fixed, torch.randn(3, HIDDEN, VOCAB, generator=torch.Generator().manual_seed(0))
        self.head, self.predictor, self.embedding = weights.to(device)
        self.hidden = torch.ones(BATCH, HIDDEN, device=device)
        self.sampler, self.aux_sampler = CudaGraphableSampler(device), CudaGraphableSampler(device)
        self.aux_config = SamplingConfig()

    def sample_aux(self, logits: torch.Tensor) -> torch.Tensor:
        if self.fixed:
            return self.aux_sampler.sample(logits)
        return self.aux_sampler.sample_with_config(logits, self.aux_config.temperature, self.aux_config.top_k)

    def forward(self) -> torch.Tensor:
        codes = [self.sampler.sample(self.hidden @ self.head)]
        hidden = self.hidden
        for _ in range(1, GROUPS):
            hidden = torch.tanh(hidden + self.embedding.t()[codes[-1]])
            codes.append(self.sample_aux(hidden @ self.predictor))
        return torch.stack(codes, 1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    talker = Talker(fixed, device)
    numbers = torch.Generator().manual_seed(1)
    asked = cycle([(0.3, 2), (4.0, 6), (1.5, 3), (0.1, 6), (9.0, 5), (2.0, 1)])

    def vary() -> None:
        talker.aux_config = SamplingConfig(*next(asked))
        talker.sampler.plan([SamplingConfig(0.8, 4), SamplingConfig(1.2, 5)])
        talker.aux_sampler.plan([talker.aux_config] * BATCH)
        talker.hidden.copy_(torch.randn(BATCH, HIDDEN, generator=numbers))
        for sampler in (talker.sampler, talker.aux_sampler):
            sampler.noise_buf.copy_(torch.rand(BATCH, VOCAB, generator=numbers).clamp_(0.05))

    return SimpleNamespace(step=talker.forward, vary=vary, requests=6, talker=talker)
