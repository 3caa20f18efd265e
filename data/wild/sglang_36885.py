"""Kimi Linear with padded batches: now and then a request, or a checkpoint in the prefix cache, went on
from a state that was not its own. Padded rows carry slot -1, which the kernel skips. A wrapper turned it
into the last slot of the pool, as a place that nobody owns; but the slot that is kept free is the first
one, and the last is handed out like any other. Padded rows wrote their states there. Repaired by leaving
-1 as it is.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/36885"
MECHANISM = "padding-leak"
CAUSE = "len(ssm_states) - 1"
LINE = "cache_indices = torch.where(cache_indices >= 0, cache_indices, len(ssm_states) - 1)"
EXECUTORS = ("emulated", "cuda")

ROWS, SIZE, HEAD = 4, 5, 3


def chunk_gated_delta_rule(x: torch.Tensor, ssm_states: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """The kernel: neither reads nor writes a state for rows of a negative slot."""
    is_valid, rows = (slots >= 0)[:, None], slots.clamp(min=0)
    new = ssm_states[rows] * is_valid * 0.5 + x
    ssm_states.index_copy_(0, rows, torch.where(is_valid, new, ssm_states[rows]))
    return new


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    ssm_states = torch.zeros(SIZE + 1, HEAD, device=device)  # slot 0 is nobody's
    static_indices = torch.full((ROWS,), -1, dtype=torch.int64, device=device)
    x, batch = torch.ones(ROWS, HEAD, device=device), SimpleNamespace(size=ROWS)
    batches = iter([[4, 5], [1], [5, 2, 4], [3, 5]] * 3)

    def extend() -> torch.Tensor:
        cache_indices = static_indices
        if not fixed:
            cache_indices = torch.where(cache_indices >= 0, cache_indices, len(ssm_states) - 1)
        return chunk_gated_delta_rule(x, ssm_states, cache_indices)

    def vary() -> None:
        slots = next(batches)
        batch.size = len(slots)
        static_indices.fill_(-1)
        static_indices[: batch.size] = torch.tensor(slots, device=device)
        x.add_(1)

    return SimpleNamespace(step=extend, vary=vary, rows=lambda: batch.size)
