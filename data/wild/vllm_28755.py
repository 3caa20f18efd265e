"""Models made for more than 128k tokens lost nearly all accuracy on Blackwell with whole graphs (86 % to 1
%). Each step chooses between two attention kernels by the longest sequence in the batch. Captures run with
the longest that is possible and record the one; the batches that follow are short, and metadata is then
prepared for the other. First met by graphs in pieces for such models (#27114), then repaired: the choice
depends on no length any more.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/28755"
MECHANISM = "frozen-host-value"
CAUSE = "self.max_seq_len"
LINE = "return self.max_seq_len <= 131072"
EXECUTORS = ("emulated", "cuda")

ROWS, CONTEXT, MAX_MODEL_LEN = 3, 16, 1 << 20


class FlashInferBackend:
    """Two kernels over one cache, each with metadata of its own."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.max_seq_len = fixed, MAX_MODEL_LEN
        self.cache = torch.linspace(0, 1, CONTEXT, device=device)
        self.query = torch.ones(ROWS, device=device)
        self.seq_lens = torch.ones(ROWS, dtype=torch.int64, device=device)  # for TRT-LLM's kernel
        self.plan_lens = torch.ones(ROWS, dtype=torch.int64, device=device)  # for FlashInfer's own

    def use_trtllm(self) -> bool:
        if self.fixed:
            return True
        return self.max_seq_len <= 131072

    def build(self, lens: torch.Tensor) -> None:
        self.max_seq_len = int(lens.max())
        (self.seq_lens if self.use_trtllm() else self.plan_lens).copy_(lens)

    def forward(self) -> torch.Tensor:
        lens = self.seq_lens if self.use_trtllm() else self.plan_lens
        is_seen = torch.arange(CONTEXT, device=lens.device)[None] < lens[:, None]
        weights = (self.query[:, None] * self.cache).exp() * is_seen
        return (weights * self.cache).sum(1) / weights.sum(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = FlashInferBackend(fixed, device)
    numbers = torch.Generator().manual_seed(0)

    def vary() -> None:
        backend.build(torch.randint(2, CONTEXT + 1, (ROWS,), generator=numbers))
        backend.query.copy_(torch.rand(ROWS, generator=numbers))

    return SimpleNamespace(step=backend.forward, vary=vary, backend=backend)
