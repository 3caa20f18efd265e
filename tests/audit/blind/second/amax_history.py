from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class ScalingConfig:
    window: int = 3
    largest: float = 127.0
    margin: float = 1.1


class DelayedScaling:
    def __init__(self, config):
        self.config = config
        self.history = torch.ones(config.window, device=DEVICE)
        self.scale = torch.ones((), device=DEVICE)

    def quantise(self, x):
        self.scale.copy_(self.config.largest / (self.config.margin * self.history.max()))
        q = (x * self.scale).round().clamp(-self.config.largest, self.config.largest)
        rolled = torch.cat([self.history[1:], x.abs().amax().reshape(1)])
        self.history.copy_(rolled)
        return q

    def restore(self, q):
        return q / self.scale


class QuantisedLinear:
    def __init__(self, config, inputs=5, outputs=4):
        n = torch.arange(inputs * outputs, dtype=torch.float32)
        self.weight = torch.sin(n).view(inputs, outputs).to(DEVICE)
        self.scaling = DelayedScaling(config)

    def __call__(self, x):
        return self.scaling.restore(self.scaling.quantise(x)) @ self.weight


layers = [QuantisedLinear(ScalingConfig()), QuantisedLinear(ScalingConfig(window=2), inputs=4)]
activations = torch.ones(3, 5, device=DEVICE)
recorded = [1.0, 3.0, 0.5, 2.0, 6.0] * 100
ranges = iter(recorded)


def step():
    x = activations
    for layer in layers:
        x = layer(x)
    return x


def saturation():
    peak = activations.abs().amax()
    return peak * layers[0].scaling.scale / layers[0].scaling.config.largest


def reference():
    x = activations
    for layer in layers:
        x = x @ layer.weight
    return x.norm(dim=-1)


beside = [reference, saturation]


def vary():
    reach = next(ranges)
    n = torch.arange(activations.numel(), dtype=torch.float32).view_as(activations)
    activations.copy_(reach * torch.cos(n + reach))


def reset():
    global ranges
    ranges = iter(recorded)
    activations.fill_(1)
    for layer in layers:
        layer.scaling.history.fill_(1)
        layer.scaling.scale.fill_(1)
