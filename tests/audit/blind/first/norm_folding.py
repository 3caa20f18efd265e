"""A block whose RMSNorm gain is folded into the projection behind it."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, OUT, TOKENS = 8, 6, 4


def wave(*shape: int, rate: float) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.sin(rate * torch.arange(count, dtype=torch.float32, device=DEVICE)).view(shape)


class FoldedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(1.0 + 0.1 * wave(DIM, rate=1.3), requires_grad=False)
        self.weight = nn.Parameter(wave(OUT, DIM, rate=0.31), requires_grad=False)
        self.register_buffer("fused", torch.zeros(OUT, DIM, device=DEVICE))
        self.is_folded = False

    def load_weights(self, shard: dict[str, torch.Tensor]) -> None:
        for name, value in shard.items():
            getattr(self, name).copy_(value)
        self.is_folded = False

    def fold(self) -> None:
        torch.mul(self.weight, self.gain, out=self.fused)
        self.is_folded = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.is_folded:
            self.fold()
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return (x * scale) @ self.fused.t()


class Trainer:
    """Sends fresh weights to the rollout engine every second request."""

    def __init__(self, layer: FoldedLinear) -> None:
        self.layer, self.version = layer, 0

    def shard(self, version: int) -> dict[str, torch.Tensor]:
        return {
            "gain": 1.0 + 0.1 * wave(DIM, rate=1.3 + version),
            "weight": wave(OUT, DIM, rate=0.31 + 0.05 * version),
        }

    def publish(self) -> None:
        self.version += 1
        self.layer.load_weights(self.shard(self.version))


layer = FoldedLinear()
trainer = Trainer(layer)
tokens = wave(TOKENS, DIM, rate=0.9).clone()
served = {"requests": 0}


@torch.no_grad()
def step():
    return layer(tokens).softmax(-1)


@torch.no_grad()
def vary():
    served["requests"] += 1
    tokens.copy_(wave(TOKENS, DIM, rate=0.9 + 0.1 * served["requests"]))
    if served["requests"] % 2 == 0:
        trainer.publish()


@torch.no_grad()
def reset():
    served["requests"], trainer.version = 0, 0
    layer.load_weights(trainer.shard(0))
    tokens.copy_(wave(TOKENS, DIM, rate=0.9))
