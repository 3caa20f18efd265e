"""Berth occupancy from arrivals, by a weight-normalised layer that is refreshed from a trainer.

The trainer sends directions and magnitudes apart, along with the number of its revision.
"""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BERTHS, ARRIVALS, BATCH = 4, 6, 5


class Occupancy(nn.Module):
    """One normalised layer and a bias per berth."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = weight_norm(nn.Linear(ARRIVALS, BERTHS), dim=0)
        self.revision = 0
        self.register_load_state_dict_post_hook(self._loaded)

    @staticmethod
    def _loaded(model: "Occupancy", keys) -> None:
        model.revision += 1

    def forward(self, arrivals: torch.Tensor) -> torch.Tensor:
        if self.revision < 1:
            raise RuntimeError("the trainer has not sent anything yet")
        return torch.sigmoid(self.layer(arrivals))


class Trainer:
    """Sends state dicts."""

    def __init__(self, seed: int):
        self.rng = torch.Generator().manual_seed(seed)

    def send(self, model: Occupancy) -> dict[str, torch.Tensor]:
        sent = {}
        for name, value in model.state_dict().items():
            noise = torch.randn(value.shape, generator=self.rng)
            sent[name] = noise.abs() + 0.5 if name.endswith("original0") else noise
        return sent


trainer = Trainer(37)
model = Occupancy().to(DEVICE)
model.load_state_dict(trainer.send(model))
arrivals = torch.rand(BATCH, ARRIVALS, generator=trainer.rng).to(DEVICE)
capacity = torch.ones(BERTHS, device=DEVICE)


def step():
    with torch.no_grad():
        share = model(arrivals)
        return share, (share * capacity).sum(1)


def vary():
    arrivals.copy_(torch.rand(BATCH, ARRIVALS, generator=trainer.rng))
    model.load_state_dict(trainer.send(model))
    with torch.no_grad():
        norms = model.layer.parametrizations.weight.original0
        norms.mul_(1.0 + 0.1 * model.revision)
        capacity.copy_(norms.squeeze(1))
