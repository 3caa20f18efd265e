"""Diffusion transformers with a padded tail: the capture of the whole signature was refused and it fell back
to eager steps. The bounds of the tail's segments were made with `torch.tensor` from two numbers of the host
inside of the forward pass: a copy from pageable memory, which a graph cannot hold. Repaired by making them
on the device.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/36658"
MECHANISM = "host-sync"
CAUSE = "torch.tensor"
LINE = "lens = torch.tensor([0, valid, padding], dtype=torch.int64).to(device)"
EXECUTORS = ("emulated", "cuda")

ROWS = 8


def tail_bounds(fixed: bool, valid: int, padding: int, device: torch.device) -> torch.Tensor:
    """[3]: where the two segments of a tail begin and end."""
    if fixed:
        steps = torch.arange(3, device=device)
        return (steps > 0) * valid + (steps > 1) * padding
    lens = torch.tensor([0, valid, padding], dtype=torch.int64).to(device)
    return lens.cumsum(0)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    hidden = torch.ones(ROWS, 4, device=device)

    def step() -> torch.Tensor:
        bounds = tail_bounds(fixed, 5, ROWS - 5, hidden.device)
        rows = torch.arange(ROWS, device=hidden.device)
        segment = torch.bucketize(rows, bounds[1:], right=True)  # attention stays within a segment
        mask = segment[:, None] == segment[None]
        return torch.softmax((hidden @ hidden.T).masked_fill(~mask, float("-inf")), 1) @ hidden

    return SimpleNamespace(step=step, vary=lambda: hidden.copy_(torch.rand(ROWS, 4, generator=numbers)))
