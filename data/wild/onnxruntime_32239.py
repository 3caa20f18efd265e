"""The adaptive split-KV of FlashDecode did not adapt in a CUDA graph: how many splits it makes is planned
from the length of the live sequence, so a graph keeps the plan of the length it was captured with, at any
length. Nothing is wrong but the speed. The repair plans from the capacity of the cache wherever graphs are
captured and replayed.
"""

from types import SimpleNamespace

import torch

PROJECT = "ONNX Runtime"
LINK = "https://github.com/microsoft/onnxruntime/pull/32239"
MECHANISM = "frozen-speed"
SYMPTOM = "speed"
CAUSE = "sequence.live_length"
LINE = "length = CAPACITY if fixed and captures else sequence.live_length"
EXECUTORS = ("emulated", "cuda")

CAPACITY, PER_SPLIT = 32, 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    keys = torch.arange(1.0, CAPACITY + 1, device=device)
    seqlens_k = torch.full((), 3, dtype=torch.int64, device=device)
    sequence = SimpleNamespace(live_length=3)

    def flash_decode() -> torch.Tensor:
        captures = torch.cuda.is_current_stream_capturing()
        length = CAPACITY if fixed and captures else sequence.live_length
        num_splits = -(-length // PER_SPLIT)
        is_seen = torch.arange(CAPACITY, device=device) < seqlens_k
        partials = [part.sum() for part in (keys * is_seen).chunk(num_splits)]  # at once on a GPU
        return torch.stack(partials).sum()

    def vary() -> None:
        sequence.live_length = min(CAPACITY, sequence.live_length + 9)
        seqlens_k.fill_(sequence.live_length)
        keys.add_(1)

    return SimpleNamespace(step=flash_decode, vary=vary, sequence=sequence)
