"""Captured graphs of Candle crashed when they were replayed. A kernel on a strided tensor gets its
dimensions and strides in device memory, filled from a small vector of the host: in a capture that upload
becomes a node, which reads the vector anew at each replay. The vector is dropped as soon as the kernel has
been launched. Proposed repair: a pool that owns what is uploaded while a graph is captured.
"""

from collections import deque
from types import SimpleNamespace

import torch

from mrv2lab.graphs import host

PROJECT = "Candle"
LINK = "https://github.com/huggingface/candle/pull/3352"
MECHANISM = "liveness"
CAUSE = "strides"
LINE = "on_device = strides.to(device, non_blocking=True)"
EXECUTORS = ("emulated", "cuda")

ROWS, COLUMNS = 3, 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    storage = torch.arange(float(ROWS * COLUMNS), device=device)
    heap = [host(torch.zeros(2, dtype=torch.int64), pinned=True) for _ in range(3)]
    vectors: deque[torch.Tensor] = deque()
    capture_pool: list[torch.Tensor] = []
    others: list[torch.Tensor] = []

    def upload(values: list[int]) -> torch.Tensor:
        strides = heap.pop()
        strides[0], strides[1] = values
        on_device = strides.to(device, non_blocking=True)
        vectors.append(strides)
        if fixed:
            capture_pool.extend((strides, on_device))
        return on_device

    def contiguous() -> torch.Tensor:
        """A copy of a transposed tensor."""
        strides = upload([1, COLUMNS])
        rows = torch.arange(COLUMNS, device=device)[:, None]
        columns = torch.arange(ROWS, device=device)[None]
        place = rows * strides[0] + columns * strides[1]
        return storage[place.clamp(0, ROWS * COLUMNS - 1)]  # a kernel would fault where this clamps

    def vary() -> None:
        vectors.clear()  # their kernels have been launched
        others.append(host(torch.tensor([COLUMNS, 1]), pinned=True))
        storage.add_(torch.linspace(0, 1, ROWS * COLUMNS, device=device))

    return SimpleNamespace(step=contiguous, eager=lambda: storage.view(ROWS, COLUMNS).T.clone(), vary=vary)
