"""Calibrates the normalisation of a vibration classifier on live data of a rotor.

Statistics follow the data slowly while the rotor cruises, and quickly while it spins up.
"""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SENSORS, BATCH, CLASSES = 4, 8, 3
PACE = {"idle": 0.05, "spin-up": 0.6, "cruise": 0.1, "brake": 0.4}
FLIGHT = ("spin-up", "spin-up", "cruise", "brake", "idle")


class Classifier(nn.Module):
    """Normalise, then tell the classes apart."""

    def __init__(self, rng: torch.Generator):
        super().__init__()
        self.norm = nn.BatchNorm1d(SENSORS, momentum=PACE["idle"])
        self.head = nn.Linear(SENSORS, CLASSES)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(CLASSES, SENSORS, generator=rng))
            self.head.bias.zero_()

    def forward(self, readings: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(readings))


class Phase:
    """Tells all parts of a model that follow the data how quickly to do so."""

    def __init__(self, model: nn.Module):
        self.model, self.name = model, "idle"

    def enter(self, name: str) -> None:
        self.name = name
        self.model.apply(self._pace)

    def _pace(self, part: nn.Module) -> None:
        if isinstance(part, nn.modules.batchnorm._NormBase):
            part.momentum = PACE[self.name]


rng = torch.Generator().manual_seed(7)
model = Classifier(rng).to(DEVICE).train()
phase = Phase(model)
readings = torch.randn(BATCH, SENSORS, generator=rng).to(DEVICE)
requests = 0


def step():
    with torch.no_grad():
        scores = model(readings)
    return scores, model.norm.running_mean + 0, model.norm.running_var + 0


def vary():
    global requests
    phase.enter(FLIGHT[requests % len(FLIGHT)])
    requests += 1
    spread = 1 + requests
    readings.copy_(requests + spread * torch.randn(BATCH, SENSORS, generator=rng))


def reset():
    model.norm.reset_running_stats()
