"""Capturing a full training iteration failed. The length of `cu_seqlens` is broadcast from a tensor that
`torch.tensor(n, device=dev)` makes of an int: a copy from host memory that is not pinned, which a capture
refuses. A merge had brought that line back. The repair fills a tensor on the device.
"""

from types import SimpleNamespace

import torch

PROJECT = "Megatron-LM"
LINK = "https://github.com/NVIDIA/Megatron-LM/pull/4792"
MECHANISM = "host-sync"
CAUSE = "torch.tensor"
LINE = "n_tensor = torch.tensor(n, dtype=torch.int64, device=device)"
EXECUTORS = ("emulated", "cuda")

MAX_SEQUENCES = 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    cu_seqlens = torch.arange(MAX_SEQUENCES + 1, device=device)
    tokens = torch.ones(8, device=device)

    def get_batch() -> torch.Tensor:
        n = cu_seqlens.numel()
        if fixed:
            n_tensor = torch.empty(1, dtype=torch.int64, device=device).fill_(n)
        else:
            n_tensor = torch.tensor(n, dtype=torch.int64, device=device)
        return n_tensor * cu_seqlens.sum() + tokens  # in place of the broadcasts

    def vary() -> None:
        cu_seqlens.mul_(2)
        tokens.add_(1)

    return SimpleNamespace(step=get_batch, vary=vary)
