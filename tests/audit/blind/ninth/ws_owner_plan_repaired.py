"""Decode and prefill attention wrappers that share one planning workspace."""

from types import SimpleNamespace

import torch

ROWS, HEADS, DIM, LENGTH, TILE = 4, 3, 6, 12, 4
TILES = LENGTH // TILE


class Workspace:
    """Scratch memory for the plans; whoever plans last owns its content."""

    def __init__(self, size=64):
        self.data = torch.zeros(size)
        self.owner = None


class PrefillWrapper:
    def __init__(self, ws):
        self.ws = ws

    def plan(self, lens):
        self.ws.data[: len(lens)].copy_(torch.tensor(lens, dtype=torch.float32))
        self.ws.owner = self

    def run(self, x):
        scale = self.ws.data[: x.shape[0]].view(-1, 1, 1, 1)
        return torch.tanh(x / scale)


class DecodeWrapper:
    def __init__(self, ws):
        self.ws = ws
        self.plans = 0

    def plan(self):
        """Slopes of the heads in front, the weight of each tile behind."""
        heads = torch.arange(1, HEADS + 1, dtype=torch.float32)
        self.ws.data[:HEADS].copy_(torch.exp2(-8.0 * heads / HEADS))
        tiles = torch.arange(TILES, 0, -1, dtype=torch.float32)
        self.ws.data[HEADS : HEADS + TILES].copy_(tiles / TILES)
        self.ws.owner = self
        self.plans += 1

    def run(self, q, k, v, lens):
        self.plan()
        slopes = self.ws.data[:HEADS]
        per_tile = self.ws.data[HEADS : HEADS + TILES]
        tile_bias = per_tile[:, None].expand(-1, TILE).reshape(LENGTH)
        pos = torch.arange(LENGTH)
        distance = (lens[:, None] - 1 - pos).float()
        scores = torch.einsum("bhd,blhd->bhl", q, k) / DIM**0.5
        scores = scores - slopes[None, :, None] * distance[:, None] + tile_bias
        dead = pos >= lens[:, None]
        scores = scores.masked_fill(dead[:, None], float("-inf"))
        return torch.einsum("bhl,blhd->bhd", scores.softmax(-1), v)


class Engine:
    def __init__(self, seed=17):
        self.gen = torch.Generator().manual_seed(seed)
        self.ws = Workspace()
        self.decode = DecodeWrapper(self.ws)
        self.prefill = PrefillWrapper(self.ws)
        self.q = torch.zeros(ROWS, HEADS, DIM)
        self.k = torch.zeros(ROWS, LENGTH, HEADS, DIM)
        self.v = torch.zeros(ROWS, LENGTH, HEADS, DIM)
        self.lens = torch.full((ROWS,), 2)
        self.tick = 0
        self.step()  # warm-up, as before every capture

    def vary(self):
        self.tick += 1
        self.q.copy_(torch.randn(self.q.shape, generator=self.gen))
        lens = [2 + (self.tick * 3 + r * 5) % (LENGTH - 2) for r in range(ROWS)]
        self.lens.copy_(torch.tensor(lens))
        for buf in (self.k, self.v):
            buf.copy_(torch.randn(buf.shape, generator=self.gen))
        if self.tick in (3, 5, 6):  # a new request joins: its prompt runs eagerly
            self.prefill.plan([3.0, 5.0, 2.0, 4.0])
            self.k[:, :2].copy_(self.prefill.run(self.k[:, :2]))

    def step(self):
        return self.decode.run(self.q, self.k, self.v, self.lens).flatten(1)


def make():
    engine = Engine()
    return SimpleNamespace(step=engine.step, vary=engine.vary)
