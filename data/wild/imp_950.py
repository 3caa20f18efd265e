"""A long prompt after short requests: an illegal memory access in its first decode step, and no answers any
more (#948). The grid of attention follows from the longest context on the host: how many parts the cache is
split into. A graph is to be captured again when the number of blocks leaves its power of two, but that
number has been padded to the most there can be before it is compared. Repaired by comparing the context's
own power of two.
"""

from types import SimpleNamespace

import torch
import triton  # the harness has imported mrv2lab before: without a GPU kernels are interpreted
import triton.language as tl

from mrv2lab.graphs import capture

PROJECT = "imp"
LINK = "https://github.com/kekzl/imp/pull/950"
MECHANISM = "frozen-grid"
CAUSE = "num_splits"
LINE = "return triton.next_power_of_2(max(self.max_blocks, POOL_STRIDE))"
EXECUTORS = ("emulated", "cuda")

CONTEXT, SPLIT, BLOCK = 64, 8, 4
POOL_STRIDE = CONTEXT // BLOCK


@triton.jit
def _split_attention(values, context_len, partial_sums, SPLIT: tl.constexpr):
    split = tl.program_id(0)
    tokens = split * SPLIT + tl.arange(0, SPLIT)
    seen = tl.load(values + tokens, mask=tokens < tl.load(context_len), other=0.0)
    tl.store(partial_sums + split, tl.sum(seen))


class DecodeGraph:
    """Attention with one program for each part of the context, captured for what it was."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.max_context_len, self.max_blocks = fixed, 6, 2
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.values = torch.linspace(0, 1, CONTEXT, device=device)
        self.context_len = torch.full((1,), 6, dtype=torch.int64, device=device)
        self.graph, self.bucket = None, None

    def attention(self) -> torch.Tensor:
        num_splits = triton.cdiv(triton.next_power_of_2(self.max_context_len), SPLIT)
        partial_sums = torch.zeros(CONTEXT // SPLIT, device=self.values.device)
        _split_attention[(num_splits,)](self.values, self.context_len, partial_sums, SPLIT)
        return partial_sums.sum(0, keepdim=True) / self.context_len

    def bucket_of_context(self) -> int:
        if self.fixed:
            return max(self.bucket or 0, triton.next_power_of_2(self.max_context_len))
        return triton.next_power_of_2(max(self.max_blocks, POOL_STRIDE))

    def decode(self) -> torch.Tensor:
        bucket = self.bucket_of_context()
        if bucket != self.bucket:
            self.attention()  # compiles
            self.graph, self.bucket = capture(self.attention, backend=self.backend), bucket
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    decode_graph = DecodeGraph(fixed, device)
    lengths = iter((5, 7, 40, 41, 12, 60) * 4)

    def vary() -> None:
        decode_graph.max_context_len = next(lengths)
        decode_graph.max_blocks = triton.cdiv(decode_graph.max_context_len, BLOCK)
        decode_graph.context_len.fill_(decode_graph.max_context_len)

    return SimpleNamespace(
        step=decode_graph.decode,
        eager=decode_graph.attention,
        own_graphs=True,
        vary=vary,
        requests=6,
        decode_graph=decode_graph,
    )
