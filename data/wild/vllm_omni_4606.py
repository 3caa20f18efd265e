"""Speech came out garbled where requests were decoded together, by a change that was still under review
and was repaired in it. At warm-up the model
itself captured its decode step for several batch sizes, in advance, and each capture took the attention
metadata out of the forward context, where that of the warm-up lay, a batch of one. Repaired by capturing a
size only when a batch of it is decoded, under the metadata of that batch.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "vLLM-Omni"
LINK = "https://github.com/vllm-project/vllm-omni/pull/4606"
MECHANISM = "frozen-host-value"
CAUSE = "attn_metadata"
LINE = "metadata = self.context.attn_metadata"
EXECUTORS = ("emulated", "cuda")

HIDDEN, MAX_REQS, BUCKETS = 4, 8, (1, 2, 4, 8)


@dataclass
class AttentionMetadata:
    """How many requests there are, and how long each is."""

    num_reqs: int
    seq_lens: torch.Tensor


class VoxCPM2Talker:
    """A decode step of attention and a head, replayed by batch size."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.pool, self.graphs = new_pool(self.backend), {}
        self.hidden = torch.ones(MAX_REQS, HIDDEN, device=device)
        self.seq_lens = torch.ones(MAX_REQS, device=device)
        self.context = SimpleNamespace(attn_metadata=None)
        self.set_forward_context(1)
        if not fixed:
            self.precapture()

    def set_forward_context(self, num_reqs: int) -> None:
        self.context.attn_metadata = AttentionMetadata(num_reqs, self.seq_lens)

    def attention(self, hidden: torch.Tensor) -> torch.Tensor:
        metadata = self.context.attn_metadata
        out, rows = torch.zeros_like(hidden), metadata.num_reqs
        out[:rows].copy_(torch.tanh(hidden[:rows] * metadata.seq_lens[:rows, None].log1p()))
        return out

    def forward(self, size: int) -> torch.Tensor:
        hidden = self.hidden[:size]
        return hidden + self.attention(hidden)

    def capture_size(self, size: int) -> None:
        self.forward(size)
        self.graphs[size] = capture(lambda: self.forward(size), backend=self.backend, pool=self.pool)

    def precapture(self) -> None:
        for size in reversed(BUCKETS):
            self.capture_size(size)

    def decode(self) -> torch.Tensor:
        size = self.context.attn_metadata.num_reqs
        if size not in self.graphs:
            self.capture_size(size)
        self.graphs[size].replay()
        return self.graphs[size].outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    talker, numbers = VoxCPM2Talker(fixed, device), torch.Generator().manual_seed(0)
    batches = iter((1, 4, 2, 8, 4))

    def vary() -> None:
        talker.set_forward_context(next(batches))
        talker.hidden.copy_(torch.rand(MAX_REQS, HIDDEN, generator=numbers))
        talker.seq_lens.copy_(torch.rand(MAX_REQS, generator=numbers) * 20)

    return SimpleNamespace(
        step=talker.decode,
        eager=lambda: talker.forward(talker.context.attn_metadata.num_reqs),
        own_graphs=True,
        vary=vary,
        requests=5,
        talker=talker,
    )
