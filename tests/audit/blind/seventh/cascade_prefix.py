"""Cascade attention: one pass over blocks shared by all rows, one over the rest."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, DIM, BLOCK, BLOCKS, WIDTH = 4, 16, 4, 30, 6


class BlockPool:
    """Host view of the block lists of each running request."""

    def __init__(self):
        self.lists = [[] for _ in range(ROWS)]

    def common_prefix_blocks(self):
        n = 0
        for column in zip(*self.lists):
            if len(set(column)) > 1:
                break
            n += 1
        return min(n, WIDTH - 1)


def partial_attention(q, k, v, mask=None):
    """Returns the normalised output and its log-sum-exp."""
    scores = torch.einsum("rd,rsd->rs", q, k) / DIM**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    lse = scores.logsumexp(-1, keepdim=True)
    return torch.einsum("rs,rsd->rd", (scores - lse).exp(), v), lse


def merge_states(a, lse_a, b, lse_b):
    top = torch.maximum(lse_a, lse_b)
    wa, wb = (lse_a - top).exp(), (lse_b - top).exp()
    return (a * wa + b * wb) / (wa + wb)


class CascadeBackend:
    def __init__(self):
        gen = torch.Generator().manual_seed(201)
        self.k = torch.randn(BLOCKS, BLOCK, DIM, generator=gen).to(DEVICE)
        self.v = torch.randn(BLOCKS, BLOCK, DIM, generator=gen).to(DEVICE)
        self.table = torch.zeros(ROWS, WIDTH, dtype=torch.long, device=DEVICE)
        self.seq_lens = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.q = torch.zeros(ROWS, DIM, device=DEVICE)
        self.num_common = 0

    def forward(self):
        n = self.num_common
        shared = self.table[0, :n]
        k0 = self.k[shared].reshape(1, -1, DIM).expand(ROWS, -1, -1)
        v0 = self.v[shared].reshape(1, -1, DIM).expand(ROWS, -1, -1)
        out0, lse0 = partial_attention(self.q, k0, v0)
        rest = self.table[:, n:]
        pos = torch.arange(n * BLOCK, WIDTH * BLOCK, device=DEVICE)
        out1, lse1 = partial_attention(
            self.q, self.k[rest].flatten(1, 2), self.v[rest].flatten(1, 2), pos[None] < self.seq_lens[:, None]
        )
        return merge_states(out0, lse0, out1, lse1)


class Scheduler:
    """All rows carry the system prompt; conversations may share more than that."""

    def __init__(self, backend):
        self.backend, self.pool = backend, BlockPool()
        self.gen = torch.Generator().manual_seed(202)
        self.extra = [1, 2, 0, 3, 1, 2]
        self.place(0)

    def place(self, extra):
        perm = (torch.randperm(BLOCKS - 2, generator=self.gen) + 2).tolist()
        prefix = [0, 1] + perm[:extra]
        perm = perm[extra:]
        tail = WIDTH - len(prefix)
        self.pool.lists = [prefix + perm[r * tail : (r + 1) * tail] for r in range(ROWS)]
        b = self.backend
        b.num_common = self.pool.common_prefix_blocks()
        b.table.copy_(torch.tensor(self.pool.lists))
        low = (WIDTH - 1) * BLOCK + 1
        b.seq_lens.copy_(torch.randint(low, WIDTH * BLOCK + 1, (ROWS,), generator=self.gen))
        b.q.copy_(torch.randn(ROWS, DIM, generator=self.gen))


backend = CascadeBackend()
scheduler = Scheduler(backend)


def step():
    return backend.forward()


def vary():
    scheduler.place(scheduler.extra.pop(0))
