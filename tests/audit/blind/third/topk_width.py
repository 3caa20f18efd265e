"""Sampling probabilities with top-k and top-p. Sorting is as wide as the requests of the batch need."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, VOCAB = 4, 40
MAX_TOP_K = 16

Truncator = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
TRUNCATORS: dict[int, Truncator] = {}


def of_width(width: int) -> Callable[[Truncator], Truncator]:
    def register(fn: Truncator) -> Truncator:
        TRUNCATORS[width] = fn
        return fn

    return register


@of_width(MAX_TOP_K)
def truncate_narrow(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    best, where = logits.topk(MAX_TOP_K, dim=-1)
    return scatter(logits, best, where, top_k, top_p)


@of_width(VOCAB)
def truncate_full(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    best, where = logits.sort(dim=-1, descending=True)
    return scatter(logits, best, where, top_k, top_p)


def scatter(logits, best, where, top_k, top_p) -> torch.Tensor:
    rank = torch.arange(best.shape[1], device=logits.device)
    best = best.masked_fill(rank >= top_k[:, None], float("-inf"))
    probs = best.softmax(-1)
    probs = torch.where(probs.cumsum(-1) - probs < top_p[:, None], probs, 0.0)
    return torch.zeros_like(logits).scatter(1, where, probs / probs.sum(-1, keepdim=True))


@dataclass
class SamplingParams:
    top_k: int = 0
    top_p: float = 1.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        self.top_k = min(self.top_k or MAX_TOP_K, MAX_TOP_K)


class Sampler:
    def __init__(self) -> None:
        self.logits = torch.zeros(BATCH, VOCAB, device=DEVICE)
        self.top_k = torch.ones(BATCH, dtype=torch.long, device=DEVICE)
        self.top_p = torch.ones(BATCH, device=DEVICE)
        self.temperature = torch.ones(BATCH, device=DEVICE)
        self.widest = 1

    def admit(self, batch: list[SamplingParams]) -> None:
        self.widest = max(params.top_k for params in batch)
        for name in ("top_k", "top_p", "temperature"):
            getattr(self, name).copy_(torch.tensor([getattr(params, name) for params in batch]))

    def __call__(self) -> torch.Tensor:
        width = min(w for w in TRUNCATORS if w >= self.widest)
        return TRUNCATORS[width](self.logits / self.temperature[:, None], self.top_k, self.top_p)


sampler = Sampler()
prompts = torch.Generator().manual_seed(61)
served = 0


def vary() -> None:
    global served
    served += 1
    sampler.admit(
        [SamplingParams(1 + (served * 5 + i * 7) % 30, 0.5 + 0.1 * i, 0.6 + 0.2 * i) for i in range(BATCH)]
    )
    sampler.logits.copy_(2 * torch.randn(BATCH, VOCAB, generator=prompts))


def step() -> torch.Tensor:
    return sampler()
