"""Mamba hybrids with drafts and padded decode graphs: requests that had been set aside by the overlapping
scheduler came back with a wrong state. After a step the accepted states are scattered by a persistent
buffer of slots, of which each batch refreshes the front only. For padded rows its tail still names slots
of an earlier, larger batch. Repaired by scattering with the indices of the batch at hand, where padding
has a slot of its own.
"""

from types import SimpleNamespace

import torch

PROJECT = "TensorRT-LLM"
LINK = "https://github.com/NVIDIA/TensorRT-LLM/pull/13151"
MECHANISM = "padding-leak"
CAUSE = "self.state_indices"
LINE = "slots = metadata_indices if self.fixed else self.state_indices"
EXECUTORS = ("emulated", "cuda")

ROWS, SLOTS, DUMMY = 4, 7, 6


class MambaCacheManager:
    """States of requests by slot; the last slot is for padding."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.states = torch.zeros(SLOTS, device=device)
        self.state_indices = torch.full((ROWS,), DUMMY, dtype=torch.int64, device=device)

    def update_mamba_states(self, accepted: torch.Tensor, metadata_indices: torch.Tensor) -> None:
        slots = metadata_indices if self.fixed else self.state_indices
        self.states.index_copy_(0, slots, accepted)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    manager = MambaCacheManager(fixed, device)
    metadata_indices = torch.full((ROWS,), DUMMY, dtype=torch.int64, device=device)
    inputs = torch.ones(ROWS, device=device)
    batch = SimpleNamespace(size=ROWS)
    batches = iter([[0, 1, 2, 3], [4, 5], [0, 1, 2, 3], [5]] * 3)

    def step() -> torch.Tensor:
        accepted = manager.states[metadata_indices] * 0.5 + inputs
        manager.update_mamba_states(accepted, metadata_indices)
        return accepted

    def vary() -> None:
        slots = next(batches)
        batch.size = len(slots)
        manager.state_indices[: batch.size] = torch.tensor(slots, device=device)
        metadata_indices.fill_(DUMMY)
        metadata_indices[: batch.size] = torch.tensor(slots, device=device)
        inputs.add_(1)

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch.size, manager=manager)
