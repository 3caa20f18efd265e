"""Decode metadata: the builder makes a new record for each step, over buffers of its own."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MAX_REQS, BLOCK, MAX_BLOCKS, DIM = 4, 2, 3, 4


@dataclass(frozen=True)
class DecodeMetadata:
    num_reqs: int
    max_seq_len: int
    seq_lens: torch.Tensor
    block_table: torch.Tensor


class MetadataBuilder:
    def __init__(self) -> None:
        self.seq_lens = torch.ones(MAX_REQS, dtype=torch.int64, device=DEVICE)
        self.block_table = torch.zeros(MAX_REQS, MAX_BLOCKS, dtype=torch.int64, device=DEVICE)

    def build(self, lens: list[int], blocks: list[list[int]]) -> DecodeMetadata:
        num_reqs = len(lens)
        self.seq_lens[:num_reqs].copy_(torch.tensor(lens))
        self.seq_lens[num_reqs:].fill_(1)
        for row, ids in enumerate(blocks):
            self.block_table[row, : len(ids)].copy_(torch.tensor(ids))
        return DecodeMetadata(num_reqs, max(lens), self.seq_lens, self.block_table)


class PagedAttention:
    def __init__(self, num_blocks: int) -> None:
        ramp = torch.arange(num_blocks * BLOCK * DIM, dtype=torch.float32, device=DEVICE)
        self.keys = torch.sin(ramp * 0.9).view(num_blocks, BLOCK, DIM)
        self.values = torch.cos(ramp * 0.4).view(num_blocks, BLOCK, DIM)

    def __call__(self, query: torch.Tensor, metadata: DecodeMetadata) -> torch.Tensor:
        keys = self.keys[metadata.block_table].flatten(1, 2)
        values = self.values[metadata.block_table].flatten(1, 2)
        scores = torch.einsum("bd,btd->bt", query, keys) / DIM**0.5
        beyond = torch.arange(BLOCK * MAX_BLOCKS, device=DEVICE) >= metadata.seq_lens[:, None]
        probs = scores.masked_fill(beyond, float("-inf")).softmax(-1)
        return torch.einsum("bt,btd->bd", probs, values)


class Runner:
    def __init__(self) -> None:
        self.attention, self.builder = PagedAttention(8), MetadataBuilder()
        self.query = torch.zeros(MAX_REQS, DIM, device=DEVICE)
        self.turn = 0
        self.prepare()

    def prepare(self) -> None:
        lens = [1 + (self.turn + i) % (BLOCK * MAX_BLOCKS) for i in range(2 + self.turn % 3)]
        blocks = [[(self.turn + i + j) % 8 for j in range(-(-n // BLOCK))] for i, n in enumerate(lens)]
        self.metadata = self.builder.build(lens, blocks)
        values = torch.sin(torch.arange(MAX_REQS * DIM, dtype=torch.float32) * 0.5 + self.turn)
        self.query.copy_(values.view(MAX_REQS, DIM))


runner = Runner()


def step():
    return runner.attention(runner.query, runner.metadata)


def vary():
    runner.turn += 1
    runner.prepare()


def reset():
    runner.turn = 0
    runner.builder.block_table.zero_()
    runner.prepare()


def rows():
    return runner.metadata.num_reqs
