"""FlashAttention 3 in a CUDA graph, with nothing of an engine: which rows does a replay write?

    python attention_alone.py    # on a Hopper GPU, with vLLM installed; exit status 1 if a fault is there

As vLLM does in full graphs: one call is captured, with the `scheduler_metadata` that was made for the capture
in a buffer. Behind that the lengths of another step and its metadata are copied into the same buffers, and
the graph is replayed. The output is filled with a number that attention never gives, so what is not written
shows. What is right is worked out in float64; what is wrong is also held against attention without its causal
mask.

Of each step three ways: the call made eagerly; the replay, with metadata as vLLM makes it for that step; and
the replay with metadata for which one argument, the one that is named, had the value of the capture. Pages
beside this file tell where engines do which: `mixed_decode.md`, `full_mixed.md`, `window_decode.md`. Keys and
values are two tensors here; vLLM's are halves of one.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from vllm import __version__
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

BLOCK, MOST_KEYS = 16, 2048  # keys of a block, and of a request at most
UNWRITTEN = 1000.0
RIGHT = 0.01  # of a head of a token: relative error, eagerly at most a third of that
Batch = list[tuple[int, int]]  # of each request: queries, and keys with theirs
Maxima = tuple[int, int]  # `max_seqlen_q`, `max_seqlen_k`


@dataclass
class Call:
    """The buffers that the graph reads, for so many heads of so many elements."""

    heads: int
    head_dim: int
    requests: int
    tokens: int
    window: int = 0  # keys that a query sees, itself included; 0: all before it
    splits: int = 32  # vLLM's own `flash_attn_max_num_splits_for_cuda_graph`

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
        self.metadata = torch.zeros(4096, device="cuda", dtype=torch.int32)
        self.window_size = (self.window - 1, 0) if self.window else (-1, -1)

    def prepare(self, batch: Batch, maxima: Maxima) -> torch.Tensor:
        """Copy a batch and its metadata into the buffers. The part of the metadata's that it takes."""
        padded = batch + [(0, 0)] * (self.requests - len(batch))
        self.starts.copy_(torch.tensor([0, *(queries for queries, _ in padded)]).cumsum(0))
        self.lengths.copy_(torch.tensor([keys for _, keys in padded]))
        made = get_scheduler_metadata(
            batch_size=self.requests, max_seqlen_q=maxima[0], max_seqlen_k=maxima[1],
            num_heads_q=self.heads, num_heads_kv=self.heads // 4, headdim=self.head_dim,
            cache_seqlens=self.lengths, cu_seqlens_q=self.starts, page_size=BLOCK, causal=True,
            window_size=self.window_size, num_splits=self.splits,
        )  # fmt: skip
        self.metadata.zero_()
        self.metadata[: len(made)] = made
        return self.metadata[: len(made)]

    def attend(self, maxima: Maxima, metadata: torch.Tensor) -> None:
        flash_attn_varlen_func(
            q=self.q, k=self.k, v=self.v, out=self.out, cu_seqlens_q=self.starts, max_seqlen_q=maxima[0],
            seqused_k=self.lengths, max_seqlen_k=maxima[1], causal=True, block_table=self.table,
            window_size=list(self.window_size), scheduler_metadata=metadata, num_splits=self.splits,
            fa_version=3,
        )  # fmt: skip

    def right(self, batch: Batch, is_causal: bool = True) -> torch.Tensor:
        """[tokens, heads, elements] in float64."""
        found, ends = [], torch.tensor([0, *(queries for queries, _ in batch)]).cumsum(0).tolist()
        for request, ((queries, keys), (begin, end)) in enumerate(zip(batch, pairwise(ends), strict=True)):
            held = (one[self.table[request]].flatten(0, 1)[:keys] for one in (self.k, self.v))
            k, v = (one.double().repeat_interleave(4, 1) for one in held)
            scores = torch.einsum("qhd,khd->hqk", self.q[begin:end].double(), k) / self.head_dim**0.5
            at = torch.arange(keys - queries, keys, device="cuda")[:, None]
            behind = at - torch.arange(keys, device="cuda")
            is_seen = ((behind >= 0) | (not is_causal)) & (behind < (self.window or keys))
            weights = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
            found.append(torch.einsum("hqk,khd->qhd", weights, v))
        return torch.cat(found)

    def told(self, batch: Batch) -> str:
        """How the output is: which heads of which tokens are not written, and how far the others are off."""
        right = self.right(batch)
        out = self.out[: len(right)].double()
        is_written = (out != UNWRITTEN).any(-1)  # [tokens, heads]

        def off(wanted: torch.Tensor) -> float:
            errors = ((out - wanted).norm(dim=-1) / wanted.norm(dim=-1))[is_written]
            return float(errors.max()) if len(errors) else 0.0

        error, lost = off(right), ~is_written
        text = f"{error:.4f} off"
        if error > RIGHT:
            text += f" ({off(self.right(batch, is_causal=False)):.4f} from attention without its mask)"
        if not lost.any():
            return f"right, {text}" if error <= RIGHT else f"WRONG, {text}"
        heads = {spans(row.nonzero()[:, 0].tolist()) for row in lost if row.any()}
        tokens = spans(lost.any(1).nonzero()[:, 0].tolist())
        which = f"heads {' or '.join(sorted(heads))} of tokens {tokens}"
        told = f"WRONG, {int(lost.sum())} of {lost.numel()} unwritten ({which})"
        return told + (f", others {text}" if is_written.any() else "")


def spans(numbers: list[int]) -> str:
    """0-3 6: what a list has, in as few words as can be."""
    begins = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return " ".join(f"{a}-{b}" if a < b else str(a) for a, b in zip(begins, ends, strict=True))


def replayed(
    call: Call, queries: int, most_queries: int, batches: Iterable[Batch], held: str = "max_seqlen_q"
) -> bool:
    """Capture a call over so many queries of each request, told that none has more than `most_queries`, and
    replay it with other batches. Whether all replays are right."""
    maxima, at_capture = (most_queries, MOST_KEYS), [(queries, 64)] * call.requests
    metadata, is_right = call.prepare(at_capture, maxima), True
    call.attend(maxima, metadata)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call.attend(maxima, metadata)
    for batch in batches:
        own, told = (max(queries for queries, _ in batch), max(keys for _, keys in batch)), []
        with_one = (maxima[0], own[1]) if held == "max_seqlen_q" else (own[0], maxima[1])
        for made_for in (own, own, with_one):
            part = call.prepare(batch, made_for)
            call.out.fill_(UNWRITTEN)
            if told:
                graph.replay()
            else:
                call.attend(own, part)
            torch.cuda.synchronize()
            told.append(call.told(batch))
        name = ", ".join(f"{batch.count(one)} x {one[0]} of {one[1]} keys" for one in dict.fromkeys(batch))
        print(f"  {name}\n    eagerly: {told[0]}\n    replayed: {told[1]}\n    {held} as captured: {told[2]}")
        is_right &= told[1].startswith("right")
    return is_right


def main() -> int:
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    print(f"vllm {__version__}, {torch.cuda.get_device_name()}, {sms} SMs")
    is_right = True
    decodes = [[(1, keys)] * n for n, keys in ((8, 20), (2, 20), (2, 250), (2, 1000))]
    decodes += [[(1, 20), (1, 1000)], [(1, 20)]]
    for head_dim, splits in ((64, 32), (96, 32), (128, 32), (256, 32), (64, 1)):
        print(f"mixed_decode: 8 heads of {head_dim}, num_splits {splits}; captured with max_seqlen_q 8")
        is_right &= replayed(Call(8, head_dim, 8, 8, splits=splits), 1, 8, decodes)
    print("mixed_decode: 32 heads of 64; captured with max_seqlen_q 32; large batches")
    many = [[(1, keys)] * n for keys in (1900, 2048) for n in (2, 8, 12, 13, 14, 15, 16, 32)]
    is_right &= replayed(Call(32, 64, 32, 32), 1, 32, many)
    for heads, head_dim in ((16, 128), (32, 128), (12, 128), (8, 64), (32, 64), (16, 256)):
        print(f"full_mixed: {heads} heads of {head_dim}; captured with one token of each request")
        for number in (1, 2, 3, 4, 8, 16, 64):
            prompts = [[(number, keys + number)] for keys in (20, 400, 1600)]
            is_right &= replayed(Call(heads, head_dim, number, number), 1, 1, prompts)
    for head_dim in (64, 128):
        print(f"full_mixed: 32 heads of {head_dim}; captured with one token of each of 33 requests")
        is_right &= replayed(Call(32, head_dim, 33, 33), 1, 1, [[(1, 20)] * 31 + [(2, 22)]])
        for most, tokens in ((2, 4), (8, 32)):
            print(
                f"full_mixed: 32 heads of {head_dim}; {tokens} tokens captured with {most} requests at most"
            )
            steps, each = [[(tokens, keys + tokens)] for keys in (20, 400)], tokens // most
            is_right &= replayed(Call(32, head_dim, most, tokens), each, each, steps)
    for head_dim, splits in ((64, 32), (128, 32), (64, 1)):
        print(f"window_decode: 8 heads of {head_dim}, num_splits {splits}; a window of 64")
        steps = [[(1, keys)] for keys in (3, 20, 60, 64, 65, 100)]
        is_right &= replayed(Call(8, head_dim, 1, 1, 64, splits), 1, 1, steps, "max_seqlen_k")
    return int(not is_right)


if __name__ == "__main__":
    sys.exit(main())
