"""Hidden states that were extracted through the drafts' path came back wrong for one token, always the
same place. Batches are padded to the size of a graph, and padded tokens get slot -1. The cache is written
by plain indexing, in which -1 is the last slot of the last block: a real one. Proposed repair (#43869):
the usual cache kernel, which skips negative slots; from 0.25.1 on padded tokens go to the null block instead.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/issues/43810"
MECHANISM = "padding-leak"
CAUSE = "slot_mapping"
LINE = "kv_cache[slot_mapping // BLOCK_SIZE, slot_mapping % BLOCK_SIZE] = to_cache"
EXECUTORS = ("emulated", "cuda")

BLOCKS, BLOCK_SIZE, TOKENS = 4, 4, 8


def reshape_and_cache(to_cache: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Skips negative slots: here it writes what is there, to a block that stands for no block."""
    slots = slot_mapping.clamp(min=0)
    flat = kv_cache.view(-1)
    flat.index_copy_(0, slots, torch.where(slot_mapping >= 0, to_cache, flat[slots]))


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    kv_cache = torch.zeros(BLOCKS, BLOCK_SIZE, device=device)
    slot_mapping = torch.full((TOKENS,), -1, dtype=torch.int64, device=device)
    hidden_states = torch.ones(TOKENS, device=device)
    batches = iter([range(10, 16), range(5, 8), range(8, 12), range(4, 10)] * 3)

    def cache_hidden_states() -> torch.Tensor:
        to_cache = hidden_states * 2
        if fixed:
            reshape_and_cache(to_cache, kv_cache, slot_mapping)
        else:
            kv_cache[slot_mapping // BLOCK_SIZE, slot_mapping % BLOCK_SIZE] = to_cache
        return kv_cache[1:].clone()  # what a connector saves

    def vary() -> None:
        slots = torch.tensor(list(next(batches)), device=device)
        slot_mapping.fill_(-1)
        slot_mapping[: len(slots)] = slots
        hidden_states.add_(torch.arange(1.0, TOKENS + 1, device=device))

    return SimpleNamespace(step=cache_hidden_states, vary=vary)
