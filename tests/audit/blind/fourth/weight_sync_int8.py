"""Rollout worker: an int8 MLP whose weights a trainer refreshes while the engine keeps serving."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, HIDDEN, INNER = 6, 16, 32
gen = torch.Generator().manual_seed(17)


def quantise(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Per-channel symmetric int8."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {"qweight": torch.round(weight / scale).to(torch.int8), "scale": scale}


class QuantLinear:
    def __init__(self, out_features: int, in_features: int) -> None:
        self.out_features, self.in_features = out_features, in_features
        made = quantise(self.fresh())
        self.qweight = made["qweight"].to(DEVICE)
        self.scale = made["scale"].to(DEVICE)

    def fresh(self) -> torch.Tensor:
        return torch.randn(self.out_features, self.in_features, generator=gen) / math.sqrt(self.in_features)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.qweight.to(x.dtype) * self.scale
        return x @ weight.t()


def replace_parameter(layer: QuantLinear, name: str, new: torch.Tensor) -> None:
    """Update a parameter where it lies; one of another layout takes its place."""
    old = getattr(layer, name)
    if old.shape == new.shape and old.dtype == new.dtype:
        old.copy_(new)
    else:
        setattr(layer, name, new.to(DEVICE))


class Model:
    def __init__(self) -> None:
        self.up = QuantLinear(INNER, HIDDEN)
        self.down = QuantLinear(HIDDEN, INNER)

    def layers(self) -> dict[str, QuantLinear]:
        return {"up": self.up, "down": self.down}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.silu(self.up(x)))


class Trainer:
    """The other end of the weight transfer. Bandwidth is dear, so it may pack the small tensors."""

    def __init__(self) -> None:
        self.version = 0

    def export(self, layer: QuantLinear) -> dict[str, torch.Tensor]:
        made = quantise(layer.fresh() * (1 + self.version))
        if self.version > 1:
            made["scale"] = made["scale"].to(torch.bfloat16)
        return made

    def push(self, model: Model) -> None:
        self.version += 1
        for layer in model.layers().values():
            for name, tensor in self.export(layer).items():
                replace_parameter(layer, name, tensor)


model = Model()
trainer = Trainer()
states = torch.randn(TOKENS, HIDDEN, generator=gen).to(DEVICE)
rollouts = 0


def step():
    return model(states)


def vary():
    global rollouts
    rollouts += 1
    states.copy_(torch.randn(TOKENS, HIDDEN, generator=gen))
    if rollouts % 2 == 0:
        trainer.push(model)
