"""Control vectors: some requests push the residual stream of a middle layer in a direction."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, DIM, DEPTH = 5, 12, 3


class Block(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.up = nn.Parameter(torch.randn(DIM, 2 * DIM, generator=gen) * DIM**-0.5)
        self.down = nn.Parameter(torch.randn(2 * DIM, DIM, generator=gen) * (2 * DIM) ** -0.5)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.relu(hidden @ self.up) @ self.down


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(60 + i) for i in range(DEPTH)))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.blocks(hidden)


class Steering:
    """At most one vector at a time, on one layer."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer
        self.vector = torch.zeros(DIM, device=DEVICE)
        self.gain = torch.zeros((), device=DEVICE)
        self.handle = None

    def engage(self, vector: torch.Tensor, gain: float) -> None:
        self.vector.copy_(vector)
        self.gain.fill_(gain)
        if self.handle is None:
            self.handle = self.layer.register_forward_hook(self._push)

    def release(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def _push(self, layer: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
        return output + self.gain * self.vector


class Engine:
    PLAN = ("plain", "plain", "calm", "calm", "terse", "plain")

    def __init__(self) -> None:
        self.model = Backbone().to(DEVICE)
        self.steering = Steering(self.model.blocks[1])
        self.hidden = torch.zeros(BATCH, DIM, device=DEVICE)
        self.random = torch.Generator().manual_seed(14)
        self.directions = {name: torch.randn(DIM, generator=self.random) for name in ("calm", "terse")}
        self.served = 0
        self.hidden.copy_(torch.randn(BATCH, DIM, generator=self.random))

    def admit(self) -> None:
        style = self.PLAN[self.served % len(self.PLAN)]
        self.served += 1
        if style in self.directions:
            self.steering.engage(self.directions[style], gain=1.5)
        else:
            self.steering.release()
        self.hidden.copy_(torch.randn(BATCH, DIM, generator=self.random))


engine = Engine()


def step() -> torch.Tensor:
    with torch.no_grad():
        return engine.model(engine.hidden)


def vary() -> None:
    engine.admit()
