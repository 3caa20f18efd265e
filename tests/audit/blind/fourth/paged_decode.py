"""Decode step over a paged cache: append a token, then attend tile by tile with a running softmax."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HEADS, DIM, BLOCK, MAX_BLOCKS = 3, 2, 8, 4, 12
NUM_BLOCKS = BATCH * MAX_BLOCKS + 1
START = [5, 11, 2]
gen = torch.Generator().manual_seed(2)


class Stats:
    def __init__(self) -> None:
        self.peak, self.calls = 0, 0

    def note(self, longest: int) -> None:
        self.calls += 1
        self.peak = max(self.peak, longest)


class PagedDecoder:
    def __init__(self) -> None:
        shape = (NUM_BLOCKS * BLOCK, HEADS, DIM)
        self.fill = torch.randn(2, *shape, generator=gen)
        self.k, self.v = self.fill.to(DEVICE).clone().unbind(0)
        self.q, self.new_k, self.new_v = torch.randn(3, BATCH, HEADS, DIM, generator=gen).to(DEVICE).unbind(0)
        self.lens = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.table = torch.zeros(BATCH, MAX_BLOCKS, dtype=torch.long, device=DEVICE)
        self.within = torch.arange(BLOCK, device=DEVICE)
        self.stats = Stats()
        self.restart()

    def restart(self) -> None:
        self.k.copy_(self.fill[0])
        self.v.copy_(self.fill[1])
        self.lens.copy_(torch.tensor(START))
        self.host_lens = list(START)
        self.owned = [0] * BATCH
        self.free = list(range(1, NUM_BLOCKS))
        self.table.zero_()
        self.max_seq_len = max(START)
        for row in range(BATCH):
            self.allocate(row)

    def allocate(self, row: int) -> None:
        """Blocks for what a request has, and for what it gets next."""
        while self.owned[row] < min(MAX_BLOCKS, self.host_lens[row] // BLOCK + 2):
            self.table[row, self.owned[row]] = self.free.pop(0)
            self.owned[row] += 1

    def append(self) -> None:
        block = self.table.gather(1, (self.lens // BLOCK).unsqueeze(1)).squeeze(1)
        slot = block * BLOCK + self.lens % BLOCK
        self.k.index_copy_(0, slot, self.new_k)
        self.v.index_copy_(0, slot, self.new_v)
        self.lens += 1

    def attend(self) -> torch.Tensor:
        self.stats.note(self.max_seq_len)
        top = torch.full((BATCH, HEADS), -1e9, device=DEVICE)
        total = torch.zeros(BATCH, HEADS, device=DEVICE)
        out = torch.zeros(BATCH, HEADS, DIM, device=DEVICE)
        for tile in range(self.table.shape[1]):
            slots = self.table[:, tile, None] * BLOCK + self.within
            scores = torch.einsum("bhd,bnhd->bhn", self.q, self.k[slots]) / math.sqrt(DIM)
            inside = (tile * BLOCK + self.within) < self.lens[:, None]
            scores = scores.masked_fill(~inside[:, None], -1e9)
            higher = torch.maximum(top, scores.amax(-1))
            weights = (scores - higher[..., None]).exp() * inside[:, None]
            decay = (top - higher).exp()
            total = total * decay + weights.sum(-1)
            out = out * decay[..., None] + torch.einsum("bhn,bnhd->bhd", weights, self.v[slots])
            top = higher
        return out / total[..., None]


engine = PagedDecoder()
tick = 0


def step():
    engine.append()
    return engine.attend().flatten(1)


def vary():
    global tick
    tick += 1
    for buffer in (engine.q, engine.new_k, engine.new_v):
        buffer.copy_(torch.randn(BATCH, HEADS, DIM, generator=gen))
    engine.host_lens = [n + 1 for n in engine.host_lens]
    if tick % 3 == 0:  # a request has finished: the next one takes its row, and its blocks
        row = tick // 3 % BATCH
        engine.host_lens[row] = 1
        engine.lens[row] = 1
    engine.max_seq_len = max(engine.host_lens)
    for row in range(BATCH):
        engine.allocate(row)


def reset():
    engine.restart()
