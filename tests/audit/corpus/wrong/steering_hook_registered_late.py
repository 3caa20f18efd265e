"""A forward hook that steers the residual stream is registered after capture."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["hook", "steer", "add"]


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, device=DEVICE)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim, device=DEVICE), nn.GELU(), nn.Linear(2 * dim, dim, device=DEVICE)
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Steering:
    """Adds directions to the residual stream of single layers, request by request."""

    def __init__(self, model, dim):
        self.model = model
        self.direction = torch.randn(dim, device=DEVICE)
        self.handles = []

    def enable(self, layer, strength):
        def steer(module, args, output):
            return output + strength * self.direction  # HERE

        self.handles.append(self.model[layer].register_forward_hook(steer))


def make():
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(8) for _ in range(3))).requires_grad_(False)
    x = torch.randn(2, 8, device=DEVICE)
    steering = Steering(model, 8)
    layer = iter([1, 0, 2] * 9)

    def step():
        return model(x)  # HERE

    def vary():
        x.add_(0.5)
        steering.enable(next(layer), 0.75)

    return {"step": step, "vary": vary, "reset": None}
