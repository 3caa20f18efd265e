"""A split-K GEMM in a CUDA graph hangs at replay: the device spins and does not recover. The splits count in
on a counter that has to be zero when a launch starts, and the last one to arrive reduces. The counter is
zeroed once, by `torch.zeros` in a memoized allocation before the capture, so no graph holds that fill. Here
the last arrival is missed too, and the output stays as it was. The repair, as of the ASM twin in #4494 and
#4916: a counter for each captured launch, with its zero-fill recorded.
"""

from functools import cache
from types import SimpleNamespace

import torch

PROJECT = "aiter"
LINK = "https://github.com/ROCm/aiter/pull/4715"
MECHANISM = "not-rearmed"
CAUSE = "semaphore"
LINE = "semaphore = split_k_semaphore(device)"
EXECUTORS = ("emulated", "cuda")

ROWS, SPLITS, DEPTH = 4, 4, 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    a = torch.ones(ROWS, DEPTH, device=device)
    b = torch.arange(DEPTH, dtype=torch.float32, device=device)
    out = torch.zeros(ROWS, device=device)
    own = torch.zeros((), dtype=torch.int64, device=device)

    @cache
    def split_k_semaphore(device: torch.device) -> torch.Tensor:
        return torch.zeros((), dtype=torch.int64, device=device)

    def splitk_hgemm(semaphore: torch.Tensor) -> torch.Tensor:
        """The kernel: each split counts in, the last one reduces."""
        partials = (a * b).view(ROWS, SPLITS, -1).sum(2)
        semaphore += SPLITS
        out.copy_(torch.where(semaphore == SPLITS, partials.sum(1), out))
        return out

    def gemm() -> torch.Tensor:
        if fixed:
            semaphore = own
            semaphore.zero_()
        else:
            semaphore = split_k_semaphore(device)
        return splitk_hgemm(semaphore)

    return SimpleNamespace(step=gemm, vary=lambda: a.add_(1))
