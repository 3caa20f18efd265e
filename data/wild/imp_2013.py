"""Two identical requests without a seed gave the same text, byte by byte, and many answers began alike.
The graph of a decode step samples with a seed that is a host scalar of the capture, and nothing in it
counts steps: every token of every request is drawn from the same quantile. Repaired by adding the
position, which lies on the device and advances with each step, to the seed in the graph.
"""

from types import SimpleNamespace

import torch

PROJECT = "imp"
LINK = "https://github.com/kekzl/imp/pull/2013"
MECHANISM = "rng"
CAUSE = "seed"
LINE = "return uniform(torch.full_like(d_position, seed))"
EXECUTORS = ("emulated", "cuda")

VOCABULARY = 32


def uniform(counter: torch.Tensor) -> torch.Tensor:
    """A number in [0, 1) for each counter: a small hash in place of Philox."""
    mixed = (counter * 7919 + 104729) % 1000003
    return ((mixed * mixed + counter * 31) % 1000003).float() / 1000003


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    sampler = SimpleNamespace(seed=42)
    d_position = torch.zeros(1, dtype=torch.int64, device=device)
    logits = torch.linspace(0, 1, VOCABULARY, device=device)

    def quantile() -> torch.Tensor:
        seed = sampler.seed
        if fixed:
            return uniform(d_position + seed)
        return uniform(torch.full_like(d_position, seed))

    def decode() -> torch.Tensor:
        probabilities = torch.softmax(logits, 0).cumsum(0)
        token = torch.searchsorted(probabilities, quantile())
        d_position.add_(1)
        return token

    return SimpleNamespace(step=decode, vary=lambda: logits.mul_(0.9), requests=5, sampler=sampler)
