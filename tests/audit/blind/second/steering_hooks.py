from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HIDDEN, LAYERS, TOKENS = 8, 3, 4


@dataclass
class Request:
    prompt: torch.Tensor
    steer: dict[int, float] = field(default_factory=dict)


class Layer(torch.nn.Module):
    def __init__(self, index):
        super().__init__()
        w = torch.sin(torch.arange(HIDDEN * HIDDEN, dtype=torch.float32) + index).view(HIDDEN, HIDDEN)
        self.register_buffer("weight", w / HIDDEN)
        self.hooks = []

    def forward(self, x):
        x = x + torch.tanh(x @ self.weight)
        for hook in self.hooks:
            x = hook(x)
        return x


class Steering:
    def __init__(self, layers):
        self.layers = layers
        self.direction = torch.linspace(-1, 1, HIDDEN, device=DEVICE)

    def configure(self, steer):
        for index, layer in enumerate(self.layers):
            layer.hooks.clear()
            if index in steer:
                layer.hooks.append(self.hook(steer[index]))

    def hook(self, strength):
        shift = strength * self.direction
        return lambda x: x + shift


class Engine:
    def __init__(self):
        self.layers = torch.nn.ModuleList(Layer(i) for i in range(LAYERS)).to(DEVICE)
        self.steering = Steering(self.layers)
        self.hidden = torch.zeros(TOKENS, HIDDEN, device=DEVICE)
        self.served = 0

    def arrivals(self):
        base = torch.arange(TOKENS * HIDDEN, dtype=torch.float32).view(TOKENS, HIDDEN)
        self.served += 1
        steer = {1: 0.5 * self.served} if self.served % 2 == 0 else {}
        return Request(torch.cos(base * 0.1 * self.served), steer)

    def admit(self):
        request = self.arrivals()
        self.hidden.copy_(request.prompt)
        self.steering.configure(request.steer)

    @torch.no_grad()
    def forward(self):
        x = self.hidden
        for layer in self.layers:
            x = layer(x)
        return x


def make_engine():
    engine = Engine()
    return SimpleNamespace(step=engine.forward, vary=engine.admit)
