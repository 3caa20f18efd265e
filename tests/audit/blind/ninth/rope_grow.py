"""Decode attention with rotary embeddings whose table grows with the context."""

from types import SimpleNamespace

import torch

BATCH, HEADS, DIM = 3, 2, 8
CTX, MAX_LEN, FIRST = 6, 512, 16


def rope_rows(start, stop, base=10000.0):
    inv = base ** (-torch.arange(0, DIM, 2, dtype=torch.float32) / DIM)
    angle = torch.arange(start, stop, dtype=torch.float32)[:, None] * inv
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


class RotaryTable:
    """Rows are built when a position first needs them, doubling each time."""

    def __init__(self):
        self.filled = FIRST
        self.table = rope_rows(0, FIRST)
        self.growths = 0

    def ensure(self, length):
        if length <= self.filled:
            return
        need = min(MAX_LEN, max(length, 2 * self.filled))
        rows = rope_rows(self.filled, need)
        self.table = torch.cat([self.table, rows])
        self.filled = need
        self.growths += 1

    def rotate(self, x, pos):
        # never read behind the table, whatever a padding row carries
        pos = pos.clamp(0, self.table.shape[0] - 1)
        cos, sin = self.table[pos].unsqueeze(-2).chunk(2, dim=-1)
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Decoder:
    def __init__(self, seed=3):
        self.gen = torch.Generator().manual_seed(seed)
        self.rope = RotaryTable()
        self.q = torch.zeros(BATCH, HEADS, DIM)
        self.k = torch.zeros(BATCH, CTX, HEADS, DIM)
        self.v = torch.zeros(BATCH, CTX, HEADS, DIM)
        self.k_scale = torch.ones(HEADS)
        self.q_pos = torch.zeros(BATCH, dtype=torch.long)
        self.k_pos = torch.zeros(BATCH, CTX, dtype=torch.long)
        self.tick = 0
        self.vary()

    def vary(self):
        far = [9, 14, 12, 30, 75, 20, 140, 33][self.tick % 8]
        ends = [far, max(far - 5, CTX), max(far // 2, CTX)]
        self.rope.ensure(far + 1)
        for row, end in enumerate(ends):
            self.q_pos[row].fill_(end)
            # a sparse cache: the kept positions are spread over the context
            keep = torch.linspace(0, end, CTX).round().long()
            self.k_pos[row].copy_(keep)
        for buf in (self.q, self.k, self.v):
            buf.copy_(torch.randn(buf.shape, generator=self.gen))
        self.k_scale.copy_(torch.rand(HEADS, generator=self.gen) + 0.5)
        self.tick += 1

    def step(self):
        q = self.rope.rotate(self.q, self.q_pos)
        k = self.rope.rotate(self.k * self.k_scale[:, None], self.k_pos)
        scores = torch.einsum("bhd,bchd->bhc", q, k) / DIM**0.5
        out = torch.einsum("bhc,bchd->bhd", scores.softmax(-1), self.v)
        return out.reshape(BATCH, HEADS * DIM)


def make():
    decoder = Decoder()
    return SimpleNamespace(step=decoder.step, vary=decoder.vary)
