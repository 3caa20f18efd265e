"""Drafts were hardly ever accepted on Blackwell, and it took days to see why. `run` of a wrapper that was
made without `use_cuda_graph=True` had been captured. In that mode each `plan` makes new buffers, while the
graph reads those of the plan at capture, which are gone: wrong output first, an illegal memory access as
sequences grow. A wrapper for graphs copies its plan into buffers of its own. #3928 would refuse the capture.
"""

from itertools import cycle
from types import SimpleNamespace

import torch

PROJECT = "FlashInfer"
LINK = "https://github.com/flashinfer-ai/flashinfer/issues/3904"
MECHANISM = "moved-address"
CAUSE = "self.kv_lens"
LINE = "self.kv_lens = planned"
EXECUTORS = ("emulated", "cuda")

ROWS, CONTEXT = 4, 16


class BatchPrefillWrapper:
    """What a batch looks like is planned before the step, and read in it."""

    def __init__(self, use_cuda_graph: bool, device: torch.device):
        self.use_cuda_graph, self.device = use_cuda_graph, device
        self.kv_lens = torch.zeros(ROWS, dtype=torch.int64, device=device)

    def plan(self, kv_lens: list[int]) -> None:
        planned = torch.tensor(kv_lens, device=self.device)
        if self.use_cuda_graph:
            self.kv_lens.copy_(planned)
        else:
            self.kv_lens = planned

    def run(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        is_seen = torch.arange(CONTEXT, device=self.device) < self.kv_lens[:, None]
        return (query * keys * is_seen).sum(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    wrapper = BatchPrefillWrapper(use_cuda_graph=fixed, device=device)
    query = torch.ones(ROWS, 1, device=device)
    keys = torch.arange(1.0, CONTEXT + 1, device=device)
    lengths = cycle(range(2, CONTEXT - ROWS))
    wrapper.plan([1] * ROWS)

    def vary() -> None:
        first = next(lengths)
        wrapper.plan([first + row for row in range(ROWS)])

    return SimpleNamespace(step=lambda: wrapper.run(query, keys), vary=vary, wrapper=wrapper)
