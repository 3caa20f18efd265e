"""Models with synchronized batch normalization could no longer be captured. To allow for ranks whose batch
is empty, a change drops their statistics with a boolean mask; how many rows such an index has is known on
the device only, so the host waits for it, which a capture refuses. Repaired in #78666: the mask is left
out while a graph is captured.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import is_capturing

PROJECT = "PyTorch"
LINK = "https://github.com/pytorch/pytorch/issues/78549"
MECHANISM = "host-sync"
CAUSE = "count_all[mask]"
LINE = "count_all, mean_all = count_all[mask], mean_all[mask]"
EXECUTORS = ("emulated", "cuda")

RANKS, CHANNELS = 3, 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    count_all = torch.full((RANKS, 1), 8.0, device=device)  # gathered from all ranks
    mean_all = torch.ones(RANKS, CHANNELS, device=device)
    inputs = torch.ones(8, CHANNELS, device=device)

    def sync_batch_norm() -> torch.Tensor:
        return normalize(count_all, mean_all)

    def normalize(count_all: torch.Tensor, mean_all: torch.Tensor) -> torch.Tensor:
        mask = count_all.squeeze(-1) >= 1
        if not (fixed and is_capturing()):
            count_all, mean_all = count_all[mask], mean_all[mask]
        mean = (mean_all * count_all).sum(0) / count_all.sum()
        return inputs - mean

    def vary() -> None:
        mean_all.copy_(torch.rand(RANKS, CHANNELS, generator=numbers))
        inputs.copy_(torch.rand(8, CHANNELS, generator=numbers))

    return SimpleNamespace(step=sync_batch_norm, vary=vary)
