"""A projection with one LoRA adapter, which the host exchanges between requests."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, RANK, TOKENS = 8, 2, 3


class Adapter:
    """What a checkpoint of an adapter holds."""

    def __init__(self, seed: int, rank: int = RANK) -> None:
        a = torch.sin(torch.arange(rank * DIM, dtype=torch.float32) * (0.3 + 0.1 * seed))
        b = torch.cos(torch.arange(DIM * rank, dtype=torch.float32) * (0.7 + 0.1 * seed))
        self.a, self.b = a.view(rank, DIM), b.view(DIM, rank)
        self.scaling = 0.5


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.zeros(RANK, DIM, device=DEVICE), requires_grad=False)
        self.lora_b = nn.Parameter(torch.zeros(DIM, RANK, device=DEVICE), requires_grad=False)

    def set_adapter(self, adapter: Adapter) -> None:
        self.lora_a.data = adapter.a.to(DEVICE, copy=True)
        self.lora_b.data = (adapter.b * adapter.scaling).to(DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + (x @ self.lora_a.t()) @ self.lora_b.t()


class AdapterManager:
    def __init__(self, layer: LoRALinear, num_adapters: int) -> None:
        self.layer = layer
        self.adapters = [Adapter(seed) for seed in range(num_adapters)]
        self.active = -1
        self.activate(0)

    def activate(self, index: int) -> None:
        if index != self.active:
            self.layer.set_adapter(self.adapters[index])
            self.active = index


base = nn.Linear(DIM, DIM, bias=False, device=DEVICE)
base.requires_grad_(False)
base.weight.copy_(torch.sin(torch.arange(DIM * DIM) * 0.11).view(DIM, DIM))
layer = LoRALinear(base)
manager = AdapterManager(layer, num_adapters=3)
x = torch.zeros(TOKENS, DIM, device=DEVICE)
clock = {"turn": 0}


def fill(turn: int) -> None:
    x.copy_(torch.sin(torch.arange(TOKENS * DIM) * 0.9 + turn).view(TOKENS, DIM))


fill(0)


def step():
    return torch.nn.functional.gelu(layer(x))


def vary():
    clock["turn"] += 1
    manager.activate(clock["turn"] // 2 % 3)
    fill(clock["turn"])


def reset():
    clock["turn"] = 0
    manager.activate(0)
    fill(0)
