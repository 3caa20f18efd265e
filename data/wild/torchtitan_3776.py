"""Every request of a rollout came back with NaN (#3709), with whole graphs and attention over sequences of
different lengths. The backend claimed that any batch can be captured, while its forward pass takes where
sequences begin, and the longest, as they are at the capture. That holds for decoding, one token each; a
batch mixed with prefills replays offsets of another. Repaired by claiming decoding only: mixed batches run
eagerly.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "torchtitan"
LINK = "https://github.com/pytorch/torchtitan/pull/3776"
MECHANISM = "frozen-host-value"
CAUSE = "batch.query_lens"
LINE = "for length in batch.query_lens:"
EXECUTORS = ("emulated", "cuda")

TOKENS, HEAD = 6, 3


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = "cuda" if device.type == "cuda" else "emulated"
    numbers = torch.Generator().manual_seed(0)
    support = "UNIFORM_SINGLE_TOKEN_DECODE" if fixed else "ALWAYS"
    qkv, out = (torch.ones(TOKENS, HEAD, device=device) for _ in range(2))
    batch = SimpleNamespace(query_lens=[1] * TOKENS, graphs={})
    batches = iter([[1] * 6, [4, 1, 1], [2, 3, 1], [1] * 6, [1, 5]] * 2)

    def varlen_attention() -> torch.Tensor:
        begin = 0
        for length in batch.query_lens:
            own = qkv[begin : begin + length]
            out[begin : begin + length] = torch.softmax(own @ own.T, 1) @ own
            begin += length
        return out

    def execute() -> torch.Tensor:
        is_decode = max(batch.query_lens) == 1
        if not is_decode and support != "ALWAYS":
            return varlen_attention()
        if is_decode not in batch.graphs:
            varlen_attention()  # warms up
            batch.graphs[is_decode] = capture(varlen_attention, backend=backend)
        batch.graphs[is_decode].replay()
        return out

    def vary() -> None:
        batch.query_lens = next(batches)
        qkv.copy_(torch.rand(TOKENS, HEAD, generator=numbers))

    return SimpleNamespace(
        step=execute, eager=varlen_attention, own_graphs=True, vary=vary, requests=5, batch=batch
    )
