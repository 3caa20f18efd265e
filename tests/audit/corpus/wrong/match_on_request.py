"""A match statement takes the temperature out of the request by a class pattern."""

from dataclasses import dataclass

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["temperature", "request"]


@dataclass
class Chat:
    temperature: float
    top_k: int = 0


@dataclass
class Embed:
    pooled: bool


class Sampler:
    def __init__(self):
        torch.manual_seed(0)
        self.logits = torch.randn(3, 7, device=DEVICE)
        self.request = Chat(1.0)

    def probs(self):
        match self.request:  # HERE
            case Embed(pooled=True):
                return self.logits.mean(0)
            case Chat(temperature=t):  # HERE
                return torch.softmax(self.logits / t, dim=-1)  # HERE


def make():
    sampler = Sampler()

    def vary():
        sampler.request.temperature *= 0.5

    return {"step": sampler.probs, "vary": vary, "reset": None}
