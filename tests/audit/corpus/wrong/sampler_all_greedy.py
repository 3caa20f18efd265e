"""The sampler skips temperature and top-k while every request of the batch is greedy."""

from dataclasses import dataclass, field

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["all_greedy", "temperature", "softmax", "div"]


@dataclass
class Request:
    name: str
    temperature: float = 0.0
    top_k: int = 0


@dataclass
class SamplingBatch:
    requests: list = field(default_factory=list)
    temperatures: torch.Tensor = None

    @property
    def all_greedy(self):
        return all(r.temperature == 0.0 for r in self.requests)  # HERE

    def refresh(self):
        values = [r.temperature or 1.0 for r in self.requests]
        self.temperatures.copy_(torch.tensor(values))


class Sampler:
    def __init__(self, vocab=16):
        torch.manual_seed(0)
        self.logits = torch.randn(2, vocab, device=DEVICE)
        self.batch = SamplingBatch([Request("a"), Request("b")], torch.ones(2, device=DEVICE))

    def apply_temperature(self, logits):
        return logits / self.batch.temperatures.unsqueeze(1)  # HERE

    def forward(self):
        logits = self.logits
        if not self.batch.all_greedy:  # HERE
            logits = self.apply_temperature(logits)  # HERE
            logits = torch.log_softmax(logits, dim=-1)
        return logits.topk(4, dim=-1)


def make():
    sampler = Sampler()

    def vary():
        sampler.logits.mul_(1.25)
        first = sampler.batch.requests[0]
        sampler.batch.requests[0] = Request(first.name, first.temperature + 0.5)
        sampler.batch.refresh()

    return {"step": sampler.forward, "vary": vary, "reset": None}
