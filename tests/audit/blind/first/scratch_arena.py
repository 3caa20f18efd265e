"""Layers that take their scratch memory from one arena, in turn, and never clear it."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, DIM, INNER, LAYERS = 4, 6, 10, 3


class Arena:
    def __init__(self, num_floats: int) -> None:
        self.memory = torch.empty(num_floats, device=DEVICE)
        self.used = 0
        self.high_water = 0

    def take(self, *shape: int) -> torch.Tensor:
        count = 1
        for size in shape:
            count *= size
        if self.used + count > len(self.memory):
            self.used = 0
        view = self.memory[self.used : self.used + count].view(shape)
        self.used += count
        self.high_water = max(self.high_water, self.used)
        return view


class GatedMlp:
    def __init__(self, arena: Arena, rate: float) -> None:
        self.arena = arena
        ramp = torch.arange(DIM * INNER, dtype=torch.float32, device=DEVICE)
        self.gate, self.up = torch.sin(ramp * rate).view(DIM, INNER), torch.cos(ramp * rate).view(DIM, INNER)
        self.down = torch.sin(ramp * rate * 2).view(INNER, DIM) / INNER

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.arena.take(TOKENS, INNER)
        up = self.arena.take(TOKENS, INNER)
        torch.mm(x, self.gate, out=gate)
        torch.mm(x, self.up, out=up)
        gate.sigmoid_().mul_(up)
        return x + gate @ self.down


class Model:
    def __init__(self) -> None:
        self.arena = Arena(3 * TOKENS * INNER)
        self.layers = [GatedMlp(self.arena, 0.2 + 0.15 * i) for i in range(LAYERS)]
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.turn = 0
        self.load(0)

    def load(self, turn: int) -> None:
        self.turn = turn
        self.x.copy_(torch.cos(torch.arange(TOKENS * DIM) * 0.37 + turn).view(TOKENS, DIM))

    def forward(self) -> torch.Tensor:
        x = self.x
        for layer in self.layers:
            x = layer(x)
        return x


model = Model()


def step():
    return model.forward()


def vary():
    model.load(model.turn + 1)


def reset():
    model.load(0)
