"""Decoding with graphs gave other tokens than without. The lengths in the cache and the shapes of attention
were parsed on the host when the graph was captured, so that all later steps wrote and read where the
captured one did. Repaired by leaving the lengths on the device, for kernels that read them there.
"""

from types import SimpleNamespace

import torch

PROJECT = "InfiniLM"
LINK = "https://github.com/InfiniTensor/InfiniLM/pull/540"
MECHANISM = "frozen-host-value"
CAUSE = "self.total_len"
LINE = "keys = self.update_cache(self.total_len)"
EXECUTORS = ("emulated", "cuda")

CONTEXT, HEAD = 16, 4


class StaticCache:
    """Writes a token's key to the cache and attends to all before it."""

    def __init__(self, device: torch.device):
        self.total_len = 1
        self.total_len_on_device = torch.ones(1, dtype=torch.int64, device=device)
        self.cache = torch.zeros(CONTEXT, HEAD, device=device)
        self.key = torch.ones(1, HEAD, device=device)

    def update_cache(self, total_len: int) -> torch.Tensor:
        self.cache[total_len - 1 : total_len].copy_(self.key)
        return self.cache[:total_len]

    def decode(self) -> torch.Tensor:
        keys = self.update_cache(self.total_len)
        return torch.softmax(self.key @ keys.T, 1) @ keys


class FixedStaticCache(StaticCache):
    """The same by lengths on the device."""

    def decode(self) -> torch.Tensor:
        self.cache.index_copy_(0, self.total_len_on_device - 1, self.key)
        is_seen = torch.arange(CONTEXT, device=self.cache.device) < self.total_len_on_device
        scores = (self.key @ self.cache.T).masked_fill(~is_seen, float("-inf"))
        return torch.softmax(scores, 1) @ self.cache


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    cache = FixedStaticCache(device) if fixed else StaticCache(device)
    numbers = torch.Generator().manual_seed(0)

    def vary() -> None:
        cache.total_len += 1
        cache.total_len_on_device.fill_(cache.total_len)
        cache.key.copy_(torch.rand(1, HEAD, generator=numbers))

    return SimpleNamespace(step=cache.decode, vary=vary, cache=cache)
