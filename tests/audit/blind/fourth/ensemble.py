"""Ensemble forecast of station temperatures: stochastic perturbations and dropout in every member."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STATIONS, LAGS, MEMBERS = 9, 6, 16


class Perturb(nn.Module):
    """Multiplicative noise on the tendencies, correlated between stations."""

    def __init__(self, spread, gen):
        super().__init__()
        mixing = torch.randn(STATIONS, STATIONS, generator=gen)
        self.register_buffer("mixing", spread * mixing / mixing.norm(dim=1, keepdim=True))

    def forward(self, tendency):
        if not self.training:
            return tendency
        return tendency * (1 + torch.randn_like(tendency) @ self.mixing.T)


class Forecaster(nn.Module):
    def __init__(self, seed):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.read = nn.Linear(STATIONS * LAGS, 32)
        self.write = nn.Linear(32, STATIONS)
        self.drop = nn.Dropout(0.2)
        self.perturb = Perturb(0.5, gen)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.2)

    def forward(self, window):
        hidden = self.drop(F.elu(self.read(window.flatten(1))))
        return window[:, -1] + self.perturb(self.write(hidden))


class Run:
    """One initialisation time; its number seeds the members, so that a forecast can be made again."""

    def __init__(self, first):
        self.number = first
        self.window = torch.zeros(LAGS, STATIONS, device=DEVICE)

    def start(self, observations):
        self.number += 1
        self.window.copy_(observations)
        torch.manual_seed(self.number)


run = Run(first=20240100)
forecaster = Forecaster(90).to(DEVICE).train()
stations = torch.Generator().manual_seed(91)
quantiles = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)


@torch.no_grad()
def step(lead=3):
    window = run.window.expand(MEMBERS, LAGS, STATIONS)
    for _ in range(lead):
        window = torch.cat([window[:, 1:], forecaster(window)[:, None]], dim=1)
    final = window[:, -1]
    return {"quantiles": torch.quantile(final, quantiles, dim=0), "members": final}


def vary():
    day = torch.linspace(0, 3.1, LAGS)[:, None]
    run.start(5 * torch.sin(day) + torch.randn(LAGS, STATIONS, generator=stations))


def reset():
    stations.manual_seed(91)
    run.number = 20240100
    torch.manual_seed(run.number)
