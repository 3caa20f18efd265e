"""A Lipschitz critic that scores vibration signatures; its free weights drift with online calibration."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BANDS, BATCH = 16, 10


def orthogonal(matrix, rounds=8):
    """Bjorck's iteration towards the nearest matrix with orthonormal rows."""
    matrix = matrix / matrix.norm()
    for _ in range(rounds):
        matrix = 1.5 * matrix - 0.5 * matrix @ matrix.T @ matrix
    return matrix


class Derived:
    """A function of a tensor, worked out again whenever the tensor has been written to."""

    def __init__(self, fn):
        self.fn = fn

    def __set_name__(self, owner, name):
        self.slot = f"_{name}_slot"

    def __get__(self, module, owner=None):
        if module is None:
            return self
        stamp, value = module.__dict__.get(self.slot, (None, None))
        if stamp != module.free._version:
            value = self.fn(module.free)
            module.__dict__[self.slot] = (module.free._version, value)
        return value


class Isometry(nn.Module):
    weight = Derived(orthogonal)

    def __init__(self, inputs, outputs, gen):
        super().__init__()
        self.free = nn.Parameter(torch.randn(outputs, inputs, generator=gen))
        self.bias = nn.Parameter(torch.randn(outputs, generator=gen) * 0.1)

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


class GroupSort(nn.Module):
    def forward(self, x):
        low, high = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.cat([torch.minimum(low, high), torch.maximum(low, high)], dim=-1)


def build(seed):
    gen = torch.Generator().manual_seed(seed)
    widths = [BANDS, 16, 8, 2]
    layers = [Isometry(a, b, gen) for a, b in zip(widths, widths[1:])]
    stack = [layers[0]]
    for layer in layers[1:]:
        stack += [GroupSort(), layer]
    return nn.Sequential(*stack).to(DEVICE)


critic = build(40)
spectrum = torch.zeros(BATCH, BANDS, device=DEVICE)
sensor = torch.Generator().manual_seed(41)
readings = 0


@torch.no_grad()
def step():
    scores = critic(spectrum)
    return scores[:, 0] - scores[:, 1]


@torch.no_grad()
def calibrate(rate=0.2):
    for layer in critic:
        if isinstance(layer, Isometry):
            layer.free.add_((rate * torch.randn(layer.free.shape, generator=sensor)).to(DEVICE))


def vary():
    global readings
    readings += 1
    spectrum.copy_(torch.randn(BATCH, BANDS, generator=sensor).abs())
    if readings % 4 == 0:
        calibrate()
