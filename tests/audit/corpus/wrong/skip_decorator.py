"""Layer dropping at inference by a decorator that looks at a set of disabled layers."""

import functools

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["disabled", "mlp", "skip", "relu", "mm", "linear", "addmm"]


def skippable(method):
    """Leave the residual stream as it is when the layer is disabled."""

    @functools.wraps(method)
    def wrapper(self, x):
        if (self.number, method.__name__) in self.controller.disabled:  # HERE
            return x
        return method(self, x)

    return wrapper


class Controller:
    def __init__(self):
        self.disabled = {(0, "mlp"), (1, "mlp")}

    def enable(self, number, name):
        self.disabled.discard((number, name))


class Layer(torch.nn.Module):
    def __init__(self, number, controller, dim=6):
        super().__init__()
        self.number, self.controller = number, controller
        self.attn = torch.nn.Linear(dim, dim, device=DEVICE)
        self.ff = torch.nn.Linear(dim, dim, device=DEVICE)

    @skippable
    def mix(self, x):
        return x + torch.softmax(self.attn(x), dim=-1)

    @skippable
    def mlp(self, x):
        return x + torch.relu(self.ff(x)) * 0.5 + 0.1  # HERE

    def forward(self, x):
        return self.mlp(self.mix(x))  # HERE


def make():
    torch.manual_seed(0)
    controller = Controller()
    model = torch.nn.Sequential(*(Layer(i, controller) for i in range(2))).requires_grad_(False)
    x = torch.randn(3, 6, device=DEVICE)
    order = iter([1, 0] * 9)

    def vary():
        x.mul_(0.8)
        controller.enable(next(order), "mlp")

    return {"step": lambda: model(x), "vary": vary, "reset": None}
