"""One LoRA adapter at a time, written into resident buffers when a request asks for another."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, DIM, MAX_RANK = 4, 16, 8


@dataclass(frozen=True)
class AdapterConfig:
    name: str
    rank: int
    alpha: float
    seed: int


CATALOGUE = (
    AdapterConfig("support", rank=8, alpha=16.0, seed=1),
    AdapterConfig("legal", rank=4, alpha=8.0, seed=2),
    AdapterConfig("code", rank=8, alpha=4.0, seed=3),
    AdapterConfig("poetry", rank=2, alpha=12.0, seed=4),
)


class LoraLinear(nn.Module):
    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(width, width, generator=gen) * width**-0.5)
        self.register_buffer("down", torch.zeros(width, MAX_RANK))
        self.register_buffer("up", torch.zeros(MAX_RANK, width))
        self.join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.add

    def load(self, config: AdapterConfig, salt: int) -> None:
        gen = torch.Generator().manual_seed(1000 * config.seed + salt)
        self.down.zero_()
        self.up.zero_()
        width = self.down.shape[0]
        self.down[:, : config.rank].copy_(torch.randn(width, config.rank, generator=gen) * width**-0.5)
        self.up[: config.rank].copy_(torch.randn(config.rank, width, generator=gen) * 0.3)
        self.join = functools.partial(torch.add, alpha=config.alpha / config.rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(x @ self.weight, x @ self.down @ self.up)


class AdapterModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LoraLinear(DIM, seed=40 + i) for i in range(2))
        self.register_buffer("prompt", torch.zeros(BATCH, DIM))

    def switch(self, config: AdapterConfig) -> None:
        for salt, layer in enumerate(self.layers):
            layer.load(config, salt)

    def forward(self) -> torch.Tensor:
        hidden = self.prompt
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return hidden


model = AdapterModel().to(DEVICE)
served = 0
prompts = torch.Generator().manual_seed(9)
model.switch(CATALOGUE[served])
model.prompt.copy_(torch.randn(BATCH, DIM, generator=prompts))


@torch.inference_mode()
def step() -> torch.Tensor:
    return model()


def vary() -> None:
    global served
    served = (served + 1) % len(CATALOGUE)
    model.switch(CATALOGUE[served])
    model.prompt.copy_(torch.randn(BATCH, DIM, generator=prompts))
