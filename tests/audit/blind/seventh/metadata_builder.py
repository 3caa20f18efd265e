"""Attention metadata built anew for each batch over the runner's buffers."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH_SIZES = (1, 2, 4, 8, 16)
MAX_ROWS, DIM, BLOCK, BLOCKS, WIDTH = 16, 12, 4, 20, 3


@dataclass
class DecodeMetadata:
    num_actual: int
    num_padded: int
    max_seq_len: int
    seq_lens: torch.Tensor
    block_table: torch.Tensor


class MetadataBuilder:
    def __init__(self):
        self.seq_lens = torch.zeros(MAX_ROWS, dtype=torch.int32, device=DEVICE)
        self.block_table = torch.zeros(MAX_ROWS, WIDTH, dtype=torch.int64, device=DEVICE)

    def build(self, seq_lens, tables):
        n = len(seq_lens)
        padded = next(s for s in BATCH_SIZES if s >= n)
        self.seq_lens[:n].copy_(torch.tensor(seq_lens, dtype=torch.int32))
        self.seq_lens[n:].fill_(0)
        self.block_table[:n].copy_(torch.tensor(tables))
        self.block_table[n:].zero_()
        return DecodeMetadata(n, padded, max(seq_lens), self.seq_lens[:padded], self.block_table[:padded])


class PagedAttention:
    def __init__(self):
        gen = torch.Generator().manual_seed(261)
        self.k = torch.randn(BLOCKS, BLOCK, DIM, generator=gen).to(DEVICE)
        self.v = torch.randn(BLOCKS, BLOCK, DIM, generator=gen).to(DEVICE)

    def forward(self, q, meta):
        assert meta.max_seq_len <= WIDTH * BLOCK
        k = self.k[meta.block_table].flatten(1, 2)
        v = self.v[meta.block_table].flatten(1, 2)
        pos = torch.arange(WIDTH * BLOCK, device=DEVICE)
        live = pos[None] < meta.seq_lens[:, None]
        w = torch.einsum("rd,rsd->rs", q, k).sub(4.0).exp() * live
        w = w / w.sum(-1, keepdim=True).clamp_min(1e-6)
        return torch.einsum("rs,rsd->rd", w, v)


class ModelRunner:
    def __init__(self):
        self.builder = MetadataBuilder()
        self.attn = PagedAttention()
        self.q = torch.zeros(MAX_ROWS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(262)
        self.meta = None
        self.finished = 0
        self.update_states([7, 3, 9, 12, 5])

    def update_states(self, seq_lens):
        n = len(seq_lens)
        tables = torch.randint(0, BLOCKS, (n, WIDTH), generator=self.gen).tolist()
        self.meta = self.builder.build(seq_lens, tables)
        self.q[:n].copy_(torch.randn(n, DIM, generator=self.gen))
        self.q[n:].zero_()

    def execute(self):
        meta = self.meta
        return self.attn.forward(self.q[: meta.num_padded], meta)


runner = ModelRunner()
_batches = iter(
    [
        [8, 4, 10, 12, 6, 1],
        [9, 5, 11, 7, 2, 4, 4],
        [10, 6, 12, 8, 3, 5, 5, 1],
        [11, 7, 9, 4, 6],
        [12, 8, 10, 5, 7, 2, 1, 3],
        [3, 2, 2, 1, 1, 4],
    ]
)


def step():
    return runner.execute()


def vary():
    runner.finished += 1
    runner.update_states(next(_batches))
