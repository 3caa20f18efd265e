"""Watches a kiln: a small network tells how far the firing is, from sensors whose scale drifts.

Between requests the normalisation is brought up to date on a calibration batch, and the regularisation for
the next training is put down.
"""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SENSORS, BATCH = 5, 6


class Monitor(nn.Module):
    """Normalise, one hidden layer, one number."""

    def __init__(self, rng: torch.Generator):
        super().__init__()
        self.norm = nn.BatchNorm1d(SENSORS, momentum=0.3)
        self.hidden = nn.Linear(SENSORS, 8)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(8, 1)
        with torch.no_grad():
            for weight in (*self.hidden.parameters(), *self.out.parameters()):
                weight.copy_(torch.randn(weight.shape, generator=rng))

    def forward(self, sensors: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.hidden(self.norm(sensors)))
        return self.out(self.drop(hidden)).squeeze(1)


class Upkeep:
    """What is done to a monitor between requests."""

    def __init__(self, model: Monitor):
        self.model, self.rounds = model, 0

    @torch.no_grad()
    def calibrate(self, batch: torch.Tensor) -> None:
        self.rounds += 1
        self.model.train()
        self.model.norm(batch)
        self.model.eval()
        self.model.norm.momentum = 0.3 / self.rounds
        self.model.drop.p = min(0.5, 0.1 * (1 + self.rounds))


rng = torch.Generator().manual_seed(73)
model = Monitor(rng).to(DEVICE).eval()
upkeep = Upkeep(model)
sensors = torch.randn(BATCH, SENSORS, generator=rng).to(DEVICE)


def step():
    with torch.inference_mode():
        progress = model(sensors)
        return {"progress": progress, "spread": progress.std()}


def vary():
    drift = 1.0 + upkeep.rounds
    upkeep.calibrate((drift * torch.randn(4 * BATCH, SENSORS, generator=rng) + drift).to(DEVICE))
    sensors.copy_(drift * torch.randn(BATCH, SENSORS, generator=rng) + drift)
