"""Accuracy of models with sliding windows fell with decode graphs on. Such models write the cache of their
windows at places of its own, which came to have a buffer beside the one for the full cache. A batch that is
padded to the size of a graph has the full buffer zeroed first, so that padded rows write to a dummy slot; the
new buffer kept places of the batch before, and padded rows overwrite what a request attends to. Repaired by
zeroing it too.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/24743"
MECHANISM = "padding-leak"
CAUSE = "self.out_cache_loc_swa"
LINE = "self.out_cache_loc_swa[:raw_bs].copy_(full_to_swa[loc])"
EXECUTORS = ("emulated", "cuda")

MAX_BS, HIDDEN, WINDOW, CONTEXT, SLOTS, SWA_SLOTS = 4, 4, 3, 8, 40, 20


class DecodeInputBuffers:
    """Inputs of all graphs; slot 0 of each cache belongs to nobody."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.embeds = fixed, torch.ones(MAX_BS, HIDDEN, device=device)
        self.seq_lens, self.reqs, self.out_cache_loc, self.out_cache_loc_swa = (
            torch.zeros(MAX_BS, dtype=torch.int64, device=device) for _ in range(4)
        )

    def populate(self, bs: int, batch: SimpleNamespace, loc: torch.Tensor, full_to_swa: torch.Tensor) -> None:
        raw_bs = len(batch.reqs)
        if bs != raw_bs:
            self.seq_lens.fill_(1)
            self.reqs.zero_()
            self.out_cache_loc.zero_()
            if self.fixed:
                self.out_cache_loc_swa.zero_()
        self.embeds[:raw_bs].copy_(batch.embeds)
        self.seq_lens[:raw_bs].copy_(batch.seq_lens)
        self.reqs[:raw_bs].copy_(batch.reqs)
        self.out_cache_loc[:raw_bs].copy_(loc)
        self.out_cache_loc_swa[:raw_bs].copy_(full_to_swa[loc])


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    buffers = DecodeInputBuffers(fixed, device)
    full_kv, swa_kv = (torch.zeros(slots, HIDDEN, device=device) for slots in (SLOTS, SWA_SLOTS))
    req_to_token = torch.zeros(MAX_BS + 1, CONTEXT, dtype=torch.int64, device=device)
    full_to_swa = torch.arange(SLOTS, device=device) % SWA_SLOTS
    every, numbers = torch.arange(CONTEXT, device=device), torch.Generator().manual_seed(0)
    batch, steps, graphs = SimpleNamespace(reqs=[]), count(), {}

    def attention(q: torch.Tensor, kv: torch.Tensor, seq_lens: torch.Tensor, window: int) -> torch.Tensor:
        ages = seq_lens[:, None] - 1 - every
        scores = (kv @ q[:, :, None])[:, :, 0].masked_fill((ages < 0) | (ages >= window), -1e9)
        return (torch.softmax(scores, 1)[:, None] @ kv)[:, 0]

    def forward(bs: int) -> torch.Tensor:  # a layer of full attention, then one with a window
        hidden, seq_lens, tokens = buffers.embeds[:bs], buffers.seq_lens[:bs], req_to_token[buffers.reqs[:bs]]
        full_kv.index_copy_(0, buffers.out_cache_loc[:bs], hidden)
        hidden = hidden + attention(hidden, full_kv[tokens], seq_lens, CONTEXT)
        swa_kv.index_copy_(0, buffers.out_cache_loc_swa[:bs], hidden)
        return hidden + attention(hidden, swa_kv[full_to_swa[tokens]], seq_lens, WINDOW)

    def run(graphed: bool) -> torch.Tensor:
        bs = min(bs for bs in graphs if bs >= len(batch.reqs)) if graphed else len(batch.reqs)
        buffers.populate(bs, batch, req_to_token[batch.reqs, batch.seq_lens - 1], full_to_swa)
        return (graphs[bs].replay() or graphs[bs].outputs) if graphed else forward(bs)

    def vary() -> None:
        step = next(steps) % 4
        reqs = [1, 2, 3, 4] if step < 2 else [2, 3, 4]  # the first one ends
        slots = torch.tensor([1 + step * MAX_BS + req for req in reqs], device=device)
        batch.embeds = torch.randn(len(reqs), HIDDEN, generator=numbers).to(device)
        batch.seq_lens = torch.full((len(reqs),), step + 1, device=device)
        batch.reqs = torch.tensor(reqs, device=device)
        req_to_token[batch.reqs, batch.seq_lens - 1] = slots

    for bs in (4, 2, 1):
        forward(bs)
        graphs[bs] = capture(lambda bs=bs: forward(bs), backend="cuda" if full_kv.is_cuda else "emulated")
    vary()
    served = SimpleNamespace(step=lambda: run(True), eager=lambda: run(False), own_graphs=True, vary=vary)
    served.rows, served.requests, served.buffers = (lambda: len(batch.reqs)), 3, buffers
    return served
