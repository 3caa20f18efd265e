"""FlashAttention 3 in a CUDA graph, with nothing of an engine: which rows does a replay write?

    python attention_alone.py    # on a Hopper GPU, with vLLM installed; exit status 1 if a fault is there

As vLLM does in full graphs: one call is captured, with the schedule that was made for the capture in a
buffer. Behind that the lengths of another step and its schedule are copied into the same buffers, and the
graph is replayed. The output is filled with a number that attention never gives, so what is not written
shows. What is right is worked out in float64.

Of each step three ways: the call made eagerly; the replay, with a schedule as vLLM makes it for that step;
and the replay with a schedule made with the maxima of the capture. Pages beside this file tell where engines
do which: `mixed_decode.md`, `full_mixed.md`, `window_decode.md`.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

BLOCK, MOST_KEYS, SPLITS = 16, 2048, 32  # keys of a block, of a request at most, and vLLM's own number
UNWRITTEN = 1000.0
RIGHT = 0.01  # of a head of a token: relative error, eagerly at most a third of that
Batch = list[tuple[int, int]]  # of each request: queries, and keys with theirs


@dataclass
class Call:
    """The buffers that the graph reads, for so many heads of so many elements."""

    heads: int
    head_dim: int
    requests: int
    tokens: int
    window: int = 0  # keys that a query sees, itself included; 0: all before it

    def __post_init__(self) -> None:
        made, blocks = torch.Generator("cuda").manual_seed(0), MOST_KEYS // BLOCK

        def randn(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=made, device="cuda", dtype=torch.bfloat16)

        self.k, self.v = randn(2, self.requests * blocks, BLOCK, self.heads // 4, self.head_dim)
        self.q = randn(self.tokens, self.heads, self.head_dim)
        self.out = torch.empty_like(self.q)
        self.table = torch.arange(self.requests * blocks, device="cuda", dtype=torch.int32)
        self.table = self.table.view(self.requests, blocks)
        self.starts = torch.zeros(self.requests + 1, device="cuda", dtype=torch.int32)
        self.lengths = torch.zeros(self.requests, device="cuda", dtype=torch.int32)
        self.schedule = torch.zeros(4096, device="cuda", dtype=torch.int32)
        self.window_size = (self.window - 1, 0) if self.window else (-1, -1)

    def prepare(self, batch: Batch, maxima: tuple[int, int]) -> torch.Tensor:
        """Copy a batch and its schedule into the buffers. The part of the schedule's that it takes."""
        padded = batch + [(0, 0)] * (self.requests - len(batch))
        self.starts.copy_(torch.tensor([0, *(queries for queries, _ in padded)]).cumsum(0))
        self.lengths.copy_(torch.tensor([keys for _, keys in padded]))
        made = get_scheduler_metadata(
            batch_size=self.requests, max_seqlen_q=maxima[0], max_seqlen_k=maxima[1],
            num_heads_q=self.heads, num_heads_kv=self.heads // 4, headdim=self.head_dim,
            cache_seqlens=self.lengths, cu_seqlens_q=self.starts, page_size=BLOCK, causal=True,
            window_size=self.window_size, num_splits=SPLITS,
        )  # fmt: skip
        self.schedule.zero_()
        self.schedule[: len(made)] = made
        return self.schedule[: len(made)]

    def attend(self, maxima: tuple[int, int], schedule: torch.Tensor) -> None:
        flash_attn_varlen_func(
            q=self.q, k=self.k, v=self.v, out=self.out, cu_seqlens_q=self.starts, max_seqlen_q=maxima[0],
            seqused_k=self.lengths, max_seqlen_k=maxima[1], causal=True, block_table=self.table,
            window_size=list(self.window_size), scheduler_metadata=schedule, num_splits=SPLITS,
            fa_version=3,
        )  # fmt: skip

    def right(self, batch: Batch) -> torch.Tensor:
        """[tokens, heads, elements] in float64."""
        found, ends = [], torch.tensor([0, *(queries for queries, _ in batch)]).cumsum(0).tolist()
        for request, ((queries, keys), (begin, end)) in enumerate(zip(batch, pairwise(ends), strict=True)):
            held = (one[self.table[request]].flatten(0, 1)[:keys] for one in (self.k, self.v))
            k, v = (one.double().repeat_interleave(4, 1) for one in held)
            scores = torch.einsum("qhd,khd->hqk", self.q[begin:end].double(), k) / self.head_dim**0.5
            at = torch.arange(keys - queries, keys, device="cuda")[:, None]
            behind = at - torch.arange(keys, device="cuda")
            is_seen = (behind >= 0) & (behind < (self.window or keys))
            weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
            found.append(torch.einsum("hqk,khd->qhd", weights, v))
        return torch.cat(found)

    def told(self, batch: Batch) -> str:
        """How the output is."""
        right = self.right(batch)
        out = self.out[: len(right)].double()
        is_written = (out != UNWRITTEN).any(-1)  # [tokens, heads]
        errors = ((out - right).norm(dim=-1) / right.norm(dim=-1))[is_written]
        error = float(errors.max()) if len(errors) else 0.0
        lost = sorted(set((~is_written).nonzero()[:, 1].tolist()))
        if lost:
            which = "" if len(lost) == self.heads else f" (heads {lost[0]} to {lost[-1]})"
            return f"WRONG, {int((~is_written).sum())} of {is_written.numel()} unwritten{which}"
        return f"{'right' if error <= RIGHT else 'WRONG'}, {error:.4f} off"


def replayed(call: Call, at_capture: Batch, maxima: tuple[int, int], batches: Iterable[Batch]) -> bool:
    """Capture a call with one batch and replay it with others. Whether all replays are right."""
    schedule, is_right = call.prepare(at_capture, maxima), True
    call.attend(maxima, schedule)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.attend(maxima, schedule)
    for batch in batches:
        own, told = (max(queries for queries, _ in batch), max(keys for _, keys in batch)), []
        for made_for in (own, own, maxima):
            part = call.prepare(batch, made_for)
            call.out.fill_(UNWRITTEN)
            if told:
                graph.replay()
            else:
                call.attend(own, part)
            torch.cuda.synchronize()
            told.append(call.told(batch))
        name = ", ".join(f"{batch.count(one)} x {one[0]} of {one[1]} keys" for one in dict.fromkeys(batch))
        print(
            f"  {name}: eagerly {told[0]}; replayed {told[1]}; by the capture's schedule {told[2]}",
            flush=True,
        )
        is_right &= told[1].startswith("right")
    return is_right


def main() -> int:
    is_right = True
    decodes = [[(1, keys)] * n for n, keys in ((8, 20), (2, 20), (2, 250), (2, 1000))]
    decodes += [[(1, 20), (1, 1000)], [(1, 20)]]
    for head_dim in (64, 96, 128, 256):
        print(
            f"8 heads of {head_dim}; captured with 8 tokens for a request at most, as V1 does (mixed_decode)"
        )
        is_right &= replayed(Call(8, head_dim, 8, 8), [(1, 64)] * 8, (8, MOST_KEYS), decodes)
    print("32 heads of 64; likewise, with 32 tokens: large batches")
    many = [[(1, 1900)] * n for n in (2, 8, 12, 14, 15, 16, 24, 32)]
    is_right &= replayed(Call(32, 64, 32, 32), [(1, 64)] * 32, (32, MOST_KEYS), many)
    for heads, head_dim in ((16, 128), (32, 128), (8, 64), (32, 64), (16, 256)):
        print(
            f"{heads} heads of {head_dim}; captured with one token for each request, as V2 does (full_mixed)"
        )
        for number in (1, 2, 3, 4, 8, 16, 32, 64):
            call = Call(heads, head_dim, number, number)
            prompts = [[(number, keys + number)] for keys in (20, 400, 1600)]
            is_right &= replayed(call, [(1, 64)] * number, (1, MOST_KEYS), prompts)
    for head_dim in (64, 128):
        print(
            f"8 heads of {head_dim}, a window of 64; captured with {MOST_KEYS} keys at most (window_decode)"
        )
        steps = [[(1, keys)] for keys in (3, 20, 60, 64, 65, 100)]
        is_right &= replayed(Call(8, head_dim, 1, 1, 64), [(1, 64)], (1, MOST_KEYS), steps)
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
