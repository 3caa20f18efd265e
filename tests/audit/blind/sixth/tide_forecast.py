"""Tide heights from harmonic constituents, for a port whose tables are published anew from time to time.

Tables arrive as state dicts. The model's buffers are loaded as they lie.
"""

import math

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONSTITUENTS, HOURS = 4, 12


class Port(nn.Module):
    """Sum of constituents over the datum of the chart."""

    def __init__(self, name: str):
        super().__init__()
        self.name = name
        self.register_buffer("amplitude", torch.ones(CONSTITUENTS))
        self.register_buffer("phase", torch.zeros(CONSTITUENTS))
        self.register_buffer("speed", torch.tensor([0.506, 0.524, 0.263, 0.243]))
        self.chart = {"edition": 1, "datum": 2.1}

    def get_extra_state(self):
        return dict(self.chart)

    def set_extra_state(self, state):
        self.chart.update(state)

    def forward(self, hours: torch.Tensor) -> torch.Tensor:
        angle = hours.unsqueeze(1) * self.speed - self.phase
        height = (self.amplitude * angle.cos()).sum(1)
        return height + self.chart["datum"]


class Office:
    """Publishes tables."""

    def __init__(self, seed: int):
        self.rng = torch.Generator().manual_seed(seed)
        self.edition = 1

    def table(self, port: Port) -> dict:
        self.edition += 1
        table = {key: value for key, value in port.state_dict().items()}
        table["amplitude"] = 0.5 + torch.rand(CONSTITUENTS, generator=self.rng)
        table["phase"] = 2 * math.pi * torch.rand(CONSTITUENTS, generator=self.rng)
        table["_extra_state"] = {
            "edition": self.edition,
            "datum": round(1.5 + torch.rand((), generator=self.rng).item(), 2),
        }
        return table


port = Port("Saint-Malo").to(DEVICE)
office = Office(17)
hours = torch.arange(HOURS, dtype=torch.float32, device=DEVICE)
draught = torch.full((), 1.8, device=DEVICE)


def step():
    height = port(hours)
    clearance = (height - draught).clamp(min=0.0)
    return {"height": height, "clearance": clearance}


def vary():
    hours.add_(HOURS)
    draught.fill_(1.5 + torch.rand((), generator=office.rng).item())
    port.load_state_dict(office.table(port))
