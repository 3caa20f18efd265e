"""GSM8K fell from about 0.45 to 0.23 with continuous batching and CUDA graphs. Graphs were looked up by the
padded numbers of queries and of cached tokens, but FlashAttention takes `max_seqlen_k` as a Python int,
which a graph holds by value: a batch of the same padded sizes with a longer sequence replayed a graph of
shorter ones. The repair rounds the int up to a bucket and puts it into the key.
"""

from itertools import cycle
from types import SimpleNamespace
from typing import Any

import torch

from mrv2lab import graphs

PROJECT = "transformers"
LINK = "https://github.com/huggingface/transformers/pull/45323"
MECHANISM = "incomplete-key"
CAUSE = "max_seqlen_k"
LINE = "key = (len(queries), len(keys)) + ((max_seqlen_k,) if fixed else ())"
EXECUTORS = ("emulated", "cuda")

BATCH, MAX_KV, SMALLEST = 2, 32, 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend: Any = "cuda" if device.type == "cuda" else "emulated"
    queries = torch.ones(BATCH, 1, device=device)
    keys = torch.arange(1.0, MAX_KV + 1, device=device)
    seq_lens = torch.full((BATCH,), 3, dtype=torch.int64, device=device)
    batch = SimpleNamespace(max_seqlen_k=3)
    captured: dict[tuple[int, ...], graphs.CapturedGraph] = {}
    lengths = cycle([6, 11, 30, 19, 25])

    def flash_attn_varlen(max_seqlen_k: int) -> torch.Tensor:
        """Blocks of keys behind `max_seqlen_k` are not visited."""
        is_seen = torch.arange(max_seqlen_k, device=device) < seq_lens[:, None]
        return (queries * keys[:max_seqlen_k] * is_seen).sum(1)

    def bucket(length: int) -> int:
        return max(SMALLEST, 1 << (length - 1).bit_length())

    def forward() -> torch.Tensor:
        max_seqlen_k = bucket(batch.max_seqlen_k) if fixed else batch.max_seqlen_k
        key = (len(queries), len(keys)) + ((max_seqlen_k,) if fixed else ())
        if key not in captured:
            flash_attn_varlen(max_seqlen_k)
            captured[key] = graphs.capture(lambda: flash_attn_varlen(max_seqlen_k), backend=backend)
        captured[key].replay()
        return captured[key].outputs

    def vary() -> None:
        batch.max_seqlen_k = next(lengths)
        seq_lens.copy_(torch.tensor([2, batch.max_seqlen_k], device=device))

    return SimpleNamespace(
        step=forward,
        own_graphs=True,
        eager=lambda: flash_attn_varlen(batch.max_seqlen_k),
        vary=vary,
        batch=batch,
    )
