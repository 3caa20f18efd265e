"""Decode with dynamic-NTK rotary embeddings: the table follows the longest sequence."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEAD_DIM, HEADS, ROWS, VOCAB = 16, 2, 6, 97


class DynamicNTKRotary(torch.nn.Module):
    """Rotary embedding whose base is rescaled past the training length."""

    def __init__(self, dim, trained_len=32, base=10000.0, factor=4.0):
        super().__init__()
        self.dim, self.trained_len = dim, trained_len
        self.base, self.factor = base, factor
        self.max_seen = trained_len
        self.register_buffer("cos_sin", self._table(trained_len), persistent=False)

    def _table(self, length):
        base = self.base
        if length > self.trained_len:
            ratio = self.factor * length / self.trained_len - (self.factor - 1)
            base = base * ratio ** (self.dim / (self.dim - 2))
        inv = 1.0 / base ** (torch.arange(0, self.dim, 2).float() / self.dim)
        ang = torch.arange(length).float()[:, None] * inv[None]
        return torch.cat([ang.cos(), ang.sin()], dim=-1).to(DEVICE)

    def ensure(self, length):
        """Called by the scheduler once it admits a sequence of `length` tokens."""
        if length <= self.max_seen:
            return
        self.max_seen = length
        self.cos_sin = self._table(length)

    def forward(self, positions, x):
        cos, sin = self.cos_sin.index_select(0, positions)[:, None].chunk(2, dim=-1)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)


class DecodeLayer(torch.nn.Module):
    def __init__(self, rotary, gen):
        super().__init__()
        width = HEADS * HEAD_DIM
        self.rotary = rotary
        self.embed = torch.randn(VOCAB, width, generator=gen).to(DEVICE)
        self.wq = (torch.randn(width, width, generator=gen) / width**0.5).to(DEVICE)
        self.keys = torch.randn(24, HEADS, HEAD_DIM, generator=gen).to(DEVICE)

    def forward(self, ids, positions):
        q = (self.embed[ids] @ self.wq).view(-1, HEADS, HEAD_DIM)
        q = self.rotary(positions, q)
        return torch.einsum("thd,shd->ths", q, self.keys).softmax(dim=-1)


class Scheduler:
    """Admits prompts between decode steps; prompts are prefilled elsewhere."""

    def __init__(self, layer):
        self.layer = layer
        self.ids = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.positions = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(3)
        self.pending = [10, 24, 30, 56, 20, 80]
        self.refresh()

    def refresh(self):
        self.ids.copy_(torch.randint(0, VOCAB, (ROWS,), generator=self.gen))
        self.positions.copy_(torch.randint(4, 31, (ROWS,), generator=self.gen))

    def admit(self):
        if self.pending:
            self.layer.rotary.ensure(self.pending.pop(0))
        self.refresh()


_gen = torch.Generator().manual_seed(11)
layer = DecodeLayer(DynamicNTKRotary(HEAD_DIM), _gen)
scheduler = Scheduler(layer)


@torch.no_grad()
def step():
    return layer(scheduler.ids, scheduler.positions)


def vary():
    scheduler.admit()
