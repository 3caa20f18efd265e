"""Kimi on ROCm: 87 to 90 ms for a token at 100,000 tokens of context, and right answers. The attention
kernel chooses on the host by the least length of a context into how many parts it splits the cache. vLLM
leaves that length at 1, so the graph holds one part for ever and a single workgroup walks the whole context.
Proposed repair: a default that is long enough for all parts.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/51119"
MECHANISM = "frozen-speed"
CAUSE = "metadata.min_kv_seq_len"
LINE = "num_kv_splits = min(MAX_SPLITS, -(-metadata.min_kv_seq_len // TOKENS_PER_SPLIT))"
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"

ROWS, HEAD, CONTEXT, TOKENS_PER_SPLIT, MAX_SPLITS = 2, 4, 64, 16, 4


def mla_decode(query: torch.Tensor, cache: torch.Tensor, metadata: SimpleNamespace) -> torch.Tensor:
    """[rows, head]: attention in parts that could run side by side, and their merge."""
    num_kv_splits = min(MAX_SPLITS, -(-metadata.min_kv_seq_len // TOKENS_PER_SPLIT))
    highest, sums, outputs = [], [], []
    for keys in cache.chunk(num_kv_splits):
        scores = query @ keys.T
        highest.append(scores.amax(1))
        weights = (scores - highest[-1][:, None]).exp()
        sums.append(weights.sum(1))
        outputs.append(weights @ keys)
    factors = (torch.stack(highest) - torch.stack(highest).amax(0)).exp()
    total = (torch.stack(sums) * factors).sum(0)
    return (torch.stack(outputs) * factors[..., None]).sum(0) / total[:, None]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    numbers = torch.Generator().manual_seed(0)
    metadata = SimpleNamespace(min_kv_seq_len=MAX_SPLITS * TOKENS_PER_SPLIT if fixed else 1)
    query = torch.ones(ROWS, HEAD, device=device)
    cache = torch.rand(CONTEXT, HEAD, generator=numbers).to(device)
    return SimpleNamespace(
        step=lambda: mla_decode(query, cache, metadata),
        vary=lambda: query.copy_(torch.rand(ROWS, HEAD, generator=numbers)),
        metadata=metadata,
    )
