"""DeepSeek V4.1 with graphs answered with nothing or garbage (#57156). Dummy batches, which captures run
with, have block tables of zeros, and leave what is not finite in block 0 of the cache, which stands for no
block. Attention gathers that block for masked entries and relies on their weight being zero; zero times NaN
is NaN. Block 0 had been cleared once, before the captures. Proposed repair: clear it after them.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/57158"
MECHANISM = "cross-capture"
CAUSE = "self.cache"
LINE = "values = self.cache[self.block_table.clamp(min=0)]"
EXECUTORS = ("emulated", "cuda")

BLOCKS, TOP_K, HEAD = 8, 4, 3


class SparseAttention:
    """One token over the blocks in a table, where -1 is no block."""

    def __init__(self, device: torch.device):
        self.cache = torch.linspace(-1, 1, BLOCKS * HEAD, device=device).reshape(BLOCKS, HEAD)
        self.cache[0].zero_()
        self.block_table = torch.arange(1, TOP_K + 1, device=device)
        self.query = torch.ones(HEAD, device=device)
        self.dummy = torch.full((HEAD,), float("nan"), device=device)  # activations of a dummy batch
        self.null_slot = torch.zeros(1, dtype=torch.int64, device=device)

    def capture_dummy(self) -> torch.Tensor:
        return self.cache.index_copy_(0, self.null_slot, self.dummy[None])

    def decode(self) -> torch.Tensor:
        values = self.cache[self.block_table.clamp(min=0)]
        scores = (values @ self.query).masked_fill(self.block_table < 0, -1e30)
        return torch.softmax(scores, 0) @ values


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    attention = SparseAttention(device)
    numbers = torch.Generator().manual_seed(0)
    engine = SimpleNamespace(is_captured=False, attention=attention)

    def vary() -> None:
        if fixed and not engine.is_captured:
            attention.cache[0].zero_()  # behind the captures
        engine.is_captured = True
        table = 1 + torch.randperm(BLOCKS - 1, generator=numbers)[:TOP_K]
        table[-1] = -1  # a short request
        attention.block_table.copy_(table)
        attention.query.copy_(torch.rand(HEAD, generator=numbers))

    return SimpleNamespace(
        step=attention.decode, vary=vary, beside=[("before", attention.capture_dummy)], engine=engine
    )
