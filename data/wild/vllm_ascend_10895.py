"""Less accurate answers with sparse attention by Hamming distance, in graphs only. A request attends to the
blocks that are nearest, and the kernel gets their number of tokens. Before a replay the parameters of the
captured kernels are updated, and there the lengths are those of the whole context: attention runs over what
lies behind the chosen blocks. Repaired by passing the reduced lengths there as well.
"""

from types import SimpleNamespace

import torch

PROJECT = "vllm-ascend"
LINK = "https://github.com/vllm-project/vllm-ascend/pull/10895"
MECHANISM = "stale-input"
CAUSE = "self.seq_lens"
LINE = "lengths = self.seq_lens"
EXECUTORS = ("emulated", "cuda")

REQUESTS, BLOCKS, BLOCK, TOP_K = 2, 6, 4, 2


class HammingSparseAttention:
    """Attention over the first `actual_seq_lengths_kv` tokens, with the chosen blocks in front."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.keys = torch.linspace(-1, 1, BLOCKS * BLOCK, device=device).reshape(BLOCKS, BLOCK)
        self.query = torch.ones(REQUESTS, 1, device=device)
        self.order = torch.arange(BLOCKS, device=device).repeat(REQUESTS, 1)  # of blocks, nearest first
        self.seq_lens = torch.full((REQUESTS,), BLOCKS * BLOCK, dtype=torch.int64, device=device)
        self.actual_seq_lengths_kv = self.reduced().clone()

    def reduced(self) -> torch.Tensor:
        return self.seq_lens.clamp(max=TOP_K * BLOCK)

    def update_graph_params(self) -> None:
        lengths = self.seq_lens
        if self.fixed:
            lengths = self.reduced()
        self.actual_seq_lengths_kv.copy_(lengths)

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        keys = self.keys[self.order].view(REQUESTS, -1)
        is_seen = torch.arange(BLOCKS * BLOCK, device=keys.device)[None] < lengths[:, None]
        weights = (self.query * keys).exp() * is_seen
        return (weights * keys).sum(1) / weights.sum(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    attention = HammingSparseAttention(fixed, device)
    numbers = torch.Generator().manual_seed(0)

    def vary() -> None:
        attention.seq_lens.copy_(torch.randint(9, BLOCKS * BLOCK + 1, (REQUESTS,), generator=numbers))
        attention.query.copy_(torch.rand(REQUESTS, 1, generator=numbers))
        attention.order.copy_(
            torch.stack([torch.randperm(BLOCKS, generator=numbers) for _ in range(REQUESTS)])
        )
        attention.update_graph_params()

    return SimpleNamespace(
        step=lambda: attention.forward(attention.actual_seq_lengths_kv),
        eager=lambda: attention.forward(attention.reduced()),
        vary=vary,
        attention=attention,
    )
