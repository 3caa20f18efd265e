"""Decode attention over a paged cache, in two passes: the prefix that the batch shares, then the rest."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HEADS, DIM, BLOCK, TABLE, NUM_BLOCKS = 4, 2, 8, 4, 6, 40
gen = torch.Generator().manual_seed(5)


class BlockManager:
    """Hands out cache blocks. Requests with the same prompt head share its blocks."""

    def __init__(self) -> None:
        self.free = list(range(NUM_BLOCKS - 1, 0, -1))
        self.heads: dict[str, list[int]] = {}

    def head(self, name: str, count: int) -> list[int]:
        if name not in self.heads:
            self.heads[name] = [self.free.pop() for _ in range(count)]
        return self.heads[name]

    def request(self, name: str, shared: int, total: int) -> list[int]:
        return self.head(name, 3)[:shared] + [self.free.pop() for _ in range(total - shared)]

    def release(self, tables: list[list[int]]) -> None:
        kept = {b for blocks in self.heads.values() for b in blocks}
        self.free += sorted({b for t in tables for b in t} - kept, reverse=True)


def common_prefix(tables: list[list[int]]) -> int:
    count = 0
    for column in zip(*tables):
        if len(set(column)) > 1:
            break
        count += 1
    return count


class Attention:
    def __init__(self) -> None:
        shape = (NUM_BLOCKS, BLOCK, HEADS, DIM)
        self.k = torch.randn(shape, generator=gen).to(DEVICE)
        self.v = torch.randn(shape, generator=gen).to(DEVICE)
        self.table = torch.zeros(BATCH, TABLE, dtype=torch.long, device=DEVICE)
        self.lens = torch.ones(BATCH, dtype=torch.long, device=DEVICE)
        self.num_common_blocks = 0
        self.tables: list[list[int]] = []

    def build(self, tables: list[list[int]], lens: list[int]) -> None:
        padded = [t + [0] * (TABLE - len(t)) for t in tables]
        self.table.copy_(torch.tensor(padded))
        self.lens.copy_(torch.tensor(lens))
        self.num_common_blocks = common_prefix(tables)
        self.tables = tables

    def part(self, q, k, v, mask=None):
        """Attention over one stretch of keys, and the logarithm of its weight."""
        scores = torch.einsum("bhd,bnhd->bhn", q, k) / math.sqrt(DIM)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -1e9)
        lse = scores.logsumexp(-1)
        return torch.einsum("bhn,bnhd->bhd", scores.softmax(-1), v), lse

    def __call__(self, q: torch.Tensor) -> torch.Tensor:
        common = self.num_common_blocks
        rest = self.table[:, common:]
        k = self.k[rest].flatten(1, 2)
        v = self.v[rest].flatten(1, 2)
        at = torch.arange(k.shape[1], device=DEVICE) + common * BLOCK
        out, lse = self.part(q, k, v, at[None] < self.lens[:, None])
        if common == 0:
            return out
        head = self.table[0, :common]
        k = self.k[head].flatten(0, 1).expand(BATCH, -1, -1, -1)
        v = self.v[head].flatten(0, 1).expand(BATCH, -1, -1, -1)
        first, first_lse = self.part(q, k, v)
        weight = torch.sigmoid(first_lse - lse)[..., None]
        return first * weight + out * (1 - weight)


manager = BlockManager()
attention = Attention()
query = torch.randn(BATCH, HEADS, DIM, generator=gen).to(DEVICE)
traffic = iter([("chat", 3), ("chat", 3), ("chat", 1), ("code", 2), ("chat", 0), ("code", 3)] * 50)


def admit() -> None:
    name, shared = next(traffic)
    manager.release(attention.tables)
    tables = [manager.request(name, shared, 4 + i % 3) for i in range(BATCH)]
    attention.build(tables, [len(t) * BLOCK - i for i, t in enumerate(tables)])


admit()


def step():
    return attention(query).flatten(1)


def vary():
    admit()
    query.copy_(torch.randn(BATCH, HEADS, DIM, generator=gen))
