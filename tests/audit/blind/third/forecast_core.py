"""Core of a toy weather model: advection and mixing on a periodic band, heated by the sun of the hour."""

import math

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LATS, LONS = 12, 32


class Advection(nn.Module):
    def __init__(self, courant=0.3):
        super().__init__()
        lats = torch.linspace(-1, 1, LATS)[:, None]
        self.register_buffer("wind", courant * (1 - 2 * lats * lats))

    def forward(self, field):
        east, west = torch.roll(field, -1, dims=1), torch.roll(field, 1, dims=1)
        upwind = torch.where(self.wind > 0, field - west, east - field)
        return field - self.wind * upwind


class Mixing(nn.Module):
    def forward(self, field):
        spectrum = torch.fft.rfft(field, dim=1)
        wave = torch.arange(LONS // 2 + 1, device=field.device)
        return (
            torch.fft.irfft(spectrum * torch.exp(-0.01 * wave * wave), n=LONS, dim=1)
            .square()
            .add(field)
            .mul(0.5)
        )


class Core(nn.Module):
    """Splits the operators and swaps their order from one call to the next, which cancels the splitting error."""

    def __init__(self):
        super().__init__()
        self.advection, self.mixing = Advection(), Mixing()
        self.calls = 0

    def forward(self, field):
        first, second = (
            (self.advection, self.mixing) if self.calls % 2 == 0 else (self.mixing, self.advection)
        )
        self.calls += 1
        return second(first(field))


class Sun:
    def __init__(self):
        self.hour = torch.zeros((), device=DEVICE)
        self.longitude = torch.linspace(0, 2 * math.pi, LONS + 1, device=DEVICE)[:-1]
        self.log = []

    def heat(self, module, args):
        (field,) = args
        elevation = torch.cos(self.longitude - self.hour * (2 * math.pi / 24))
        return (field + 0.3 * elevation.clamp(min=0),)

    def note(self, module, args, result):
        self.log = [*self.log[-9:], tuple(result.shape)]


class Forecast:
    def __init__(self, substeps=4):
        self.substeps = substeps
        self.core = Core().to(DEVICE)
        self.sun = Sun()
        self.core.register_forward_pre_hook(self.sun.heat)
        self.core.register_forward_hook(self.sun.note)
        self.analysis = torch.zeros(LATS, LONS, device=DEVICE)
        self.cycle = 0

    def assimilate(self):
        self.cycle += 1
        self.sun.hour.fill_((6 * self.cycle) % 24)
        grid = torch.arange(LATS * LONS).view(LATS, LONS)
        self.analysis.copy_(0.5 * torch.sin(grid * 0.21 * self.cycle))

    def run(self):
        field = self.analysis
        for _ in range(self.substeps):
            field = self.core(field)
        return field, field.mean(dim=1)


forecast = Forecast()
step, vary = forecast.run, forecast.assimilate
