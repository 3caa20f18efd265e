"""MLA decode in a graph went wrong after a while. How the keys are split is worked out by a function with an
LRU cache, which returns a device tensor and is its only owner. A capture that hits the cache records the
address and no kernel that fills it; replays look nothing up, so their entry is the first to be evicted, and
its memory gets another owner. The repair caches the number of splits alone; the tensor is made in the step.
"""

from functools import lru_cache
from itertools import count
from types import SimpleNamespace

import torch

PROJECT = "aiter"
LINK = "https://github.com/ROCm/aiter/pull/5194"
MECHANISM = "liveness"
CAUSE = "num_kv_splits_indptr"
LINE = "num_kv_splits_indptr = indptr(splits) if fixed else cached_indptr(total_kv)"
EXECUTORS = ("emulated", "cuda")

CONTEXT = 16


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    keys = torch.arange(1.0, CONTEXT + 1, device=device)
    others = count(1000)
    kept: list[torch.Tensor] = []

    @lru_cache(maxsize=2)
    def num_kv_splits(total_kv: int) -> int:
        return 2 + total_kv % 2

    def indptr(splits: int) -> torch.Tensor:
        return torch.arange(splits + 1, device=device) * CONTEXT // splits

    @lru_cache(maxsize=2)
    def cached_indptr(total_kv: int) -> torch.Tensor:
        return indptr(num_kv_splits(total_kv))

    def attend(total_kv: int) -> torch.Tensor:
        splits = num_kv_splits(total_kv)
        num_kv_splits_indptr = indptr(splits) if fixed else cached_indptr(total_kv)
        places = torch.arange(CONTEXT, device=device)
        begin, end = num_kv_splits_indptr[:-1, None], num_kv_splits_indptr[1:, None]
        return (keys * ((begin <= places) & (places < end))).sum(1).sum(0)

    def vary() -> None:
        keys.add_(1)
        for _ in range(3):  # batches that fit no graph
            attend(next(others))
            kept.append(torch.full((3,), -1, device=device))  # and what else they allocate

    return SimpleNamespace(step=lambda: attend(64), vary=vary)
