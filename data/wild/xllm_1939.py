"""Decoding 100 sequences in a graph of 112 rows ended in an illegal memory access, or in a failure of NCCL
under TP2. The batch was padded to the size of the graph, its attention metadata was not: the rows behind it
read metadata that nobody wrote for them. Here they find what an earlier, larger batch left, and write to
live slots of the cache. The repair pads the metadata too: empty sequences, with a slot of -1 that the cache
kernel skips.
"""

from itertools import cycle
from types import SimpleNamespace

import torch

PROJECT = "xLLM"
LINK = "https://github.com/xLLM-AI/xllm/pull/1939"
MECHANISM = "padding-leak"
CAUSE = "slot_mapping"
LINE = "slot_mapping[: len(slots)].copy_(torch.tensor(slots, device=device))"
EXECUTORS = ("emulated", "cuda")

ROWS, SLOTS = 4, 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    hidden = torch.ones(ROWS, device=device)
    slot_mapping = torch.full((ROWS,), -1, dtype=torch.int64, device=device)
    cache = torch.zeros(SLOTS, device=device)
    batch = SimpleNamespace(size=ROWS)
    batches = cycle([[4, 5, 6, 7], [5, 6], [0, 1, 6], [7]])

    def decode(rows: int) -> torch.Tensor:
        """Every row writes its key, and reads the whole cache."""
        writes = torch.arange(SLOTS, device=device) == slot_mapping[:rows, None]  # [rows, slots]
        written = (hidden[:rows, None] * writes).sum(0)
        cache.copy_(torch.where(writes.any(0), written, cache))
        return hidden[:rows] + cache.sum()

    def vary() -> None:
        slots = next(batches)
        batch.size = len(slots)
        if fixed:
            slot_mapping.fill_(-1)
        slot_mapping[: len(slots)].copy_(torch.tensor(slots, device=device))
        hidden[: len(slots)] += 1

    return SimpleNamespace(
        step=lambda: decode(ROWS),
        eager=lambda: decode(batch.size),
        vary=vary,
        rows=lambda: batch.size,
        requests=4,
    )
