from dataclasses import dataclass

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class CriticConfig:
    widths: tuple[int, ...] = (4, 5, 3)
    power_iterations: int = 1


class SpectralLinear:
    def __init__(self, inputs, outputs, iterations):
        n = torch.arange(inputs * outputs, dtype=torch.float32)
        self.weight = torch.sin(n + inputs).view(outputs, inputs).to(DEVICE)
        self.u = F.normalize(torch.ones(outputs, device=DEVICE), dim=0)
        self.iterations = iterations
        self.sigma = None

    def normalised(self):
        u = self.u
        for _ in range(self.iterations):
            v = F.normalize(self.weight.T @ u, dim=0)
            u = F.normalize(self.weight @ v, dim=0)
        self.u.copy_(u)
        self.sigma = u @ self.weight @ v
        return self.weight / self.sigma

    def __call__(self, x):
        return F.linear(x, self.normalised())


class Critic:
    def __init__(self, config):
        pairs = zip(config.widths[:-1], config.widths[1:], strict=True)
        self.layers = [SpectralLinear(a, b, config.power_iterations) for a, b in pairs]

    def __call__(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum(dim=-1)

    def load(self, checkpoint):
        for layer, weight in zip(self.layers, checkpoint, strict=True):
            layer.weight.copy_(weight)


critic = Critic(CriticConfig())
images = torch.ones(3, 4, device=DEVICE)
epochs = iter(range(1, 10_000))


def step():
    return critic(images)


def vary():
    k = next(epochs)
    images.copy_(torch.cos(torch.arange(12.0) * 0.4 * k).view(3, 4))
    if k % 2 == 0:
        critic.load(
            [layer.weight.cpu() * 0.9 + 0.1 * torch.sin(layer.weight.cpu() + k) for layer in critic.layers]
        )
