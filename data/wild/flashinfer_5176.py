"""FA2 prefill for CUDA graphs without split-KV could die of an illegal memory access, for instance under
SGLang's deterministic inference. The grid is padded beyond what a batch needs, but the mask of valid blocks
was made only with split-KV: the blocks behind the batch read plan entries that this plan never wrote. A
fresh workspace happens to be right; one that held a larger plan is not. The repair makes the mask for every
graph.
"""

from itertools import cycle
from types import SimpleNamespace

import torch

PROJECT = "FlashInfer"
LINK = "https://github.com/flashinfer-ai/flashinfer/pull/5176"
MECHANISM = "unwritten-read"
CAUSE = "request_indices"
LINE = "request, end = request_indices[block : block + 1], kv_ends[block : block + 1]"
EXECUTORS = ("emulated", "cuda")

GRID, REQUESTS, CONTEXT = 6, 3, 16


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    request_indices = torch.zeros(GRID, dtype=torch.int64, device=device)  # the workspace: one entry a block
    kv_ends = torch.zeros(GRID, dtype=torch.int64, device=device)
    block_valid_mask = torch.zeros(GRID, dtype=torch.bool, device=device)
    keys = torch.arange(1.0, CONTEXT + 1, device=device)
    out = torch.zeros(REQUESTS, device=device)
    plans = cycle([[5, 5, 5, 5, 5, 5], [3, 4, 9], [7, 2, 3]])
    planned = SimpleNamespace(blocks=0)

    def plan(ends: list[int]) -> None:
        """One entry for each tile: its request, and where its keys end."""
        requests = torch.arange(len(ends), device=device) % REQUESTS
        planned.blocks = len(ends)
        request_indices[: len(ends)].copy_(requests)
        kv_ends[: len(ends)].copy_(torch.tensor(ends, device=device))
        block_valid_mask.copy_(torch.arange(GRID, device=device) < len(ends))

    def run(grid: int) -> torch.Tensor:
        out.zero_()
        for block in range(grid):  # one after the other, so that results repeat
            request, end = request_indices[block : block + 1], kv_ends[block : block + 1]
            tile = (keys * (torch.arange(CONTEXT, device=device) < end)).sum(0, keepdim=True)
            if fixed:
                tile = torch.where(block_valid_mask[block], tile, out.index_select(0, request))
            out.index_copy_(0, request, tile)
        return out

    plan([2] * REQUESTS)
    return SimpleNamespace(
        step=lambda: run(GRID), eager=lambda: run(planned.blocks), vary=lambda: plan(next(plans))
    )
