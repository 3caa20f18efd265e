"""Rotary tables for several scaling factors, of which the least recently used one goes."""

from collections import OrderedDict

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, MAX_POS, TOKENS = 8, 16, 3


class RopeTables:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tables: OrderedDict[float, torch.Tensor] = OrderedDict()

    def build(self, scaling: float) -> torch.Tensor:
        inv_freq = 1.0 / (100.0 ** (torch.arange(0, DIM, 2, device=DEVICE) / DIM))
        angle = torch.arange(MAX_POS, device=DEVICE)[:, None] / scaling * inv_freq
        return torch.cat([angle.cos(), angle.sin()], -1)

    def get(self, scaling: float) -> torch.Tensor:
        if scaling not in self.tables:
            self.tables[scaling] = self.build(scaling)
            while len(self.tables) > self.limit:
                self.tables.popitem(last=False)
        self.tables.move_to_end(scaling)
        return self.tables[scaling]


class Attention:
    def __init__(self, rope: RopeTables, scaling: float) -> None:
        self.rope, self.scaling = rope, scaling

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self.rope.get(self.scaling)[positions].chunk(2, -1)
        left, right = x.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


class Server:
    """One model decodes; the others, with their own scaling, are asked now and then."""

    def __init__(self) -> None:
        self.rope = RopeTables(limit=2)
        self.attention = Attention(self.rope, scaling=1.0)
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.positions = torch.zeros(TOKENS, dtype=torch.int64, device=DEVICE)
        self.others = [2.0, 4.0, 8.0]
        self.turn = 0
        self.fill()

    def fill(self) -> None:
        self.x.copy_(torch.sin(torch.arange(TOKENS * DIM) * 0.2 + self.turn).view(TOKENS, DIM))
        self.positions.copy_(torch.arange(TOKENS) + self.turn)

    def next_request(self) -> None:
        self.turn += 1
        self.rope.get(self.others[self.turn % len(self.others)])
        self.fill()


server = Server()


def step():
    return server.attention.rotate(server.x, server.positions)


def vary():
    server.next_request()


def reset():
    server.turn = 0
    server.fill()
