"""Coupled oscillators whose stiffness matrix is kept symmetric by a parametrization.

A request brings displacements and damping, and sometimes a stiffness that was measured anew.
"""

import torch
from torch import nn
from torch.nn.utils import parametrize

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MASSES, BATCH = 5, 4


class Symmetric(nn.Module):
    """Only the upper triangle is free."""

    def forward(self, free: torch.Tensor) -> torch.Tensor:
        return free.triu() + free.triu(1).transpose(-1, -2)

    def right_inverse(self, full: torch.Tensor) -> torch.Tensor:
        return full.triu()


class Springs(nn.Module):
    """Accelerations from displacements and velocities."""

    def __init__(self, rng: torch.Generator):
        super().__init__()
        self.stiffness = nn.Linear(MASSES, MASSES, bias=False)
        self.register_buffer("damping", torch.full((MASSES,), 0.1), persistent=False)
        with torch.no_grad():
            self.stiffness.weight.copy_(torch.randn(MASSES, MASSES, generator=rng))
        parametrize.register_parametrization(self.stiffness, "weight", Symmetric())

    def forward(self, place: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
        return -self.stiffness(place) - self.damping * speed


class Bench:
    """The test bench: holds the model and takes measurements over."""

    def __init__(self, model: Springs):
        self.model = model
        self.measurements = 0

    @torch.no_grad()
    def damp(self, values: torch.Tensor) -> None:
        self.model.damping.copy_(values)

    @torch.no_grad()
    def measured(self, matrix: torch.Tensor) -> None:
        """Blend a measured stiffness into the one in use."""
        linear = self.model.stiffness
        linear.weight = 0.5 * linear.weight + 0.5 * matrix.to(DEVICE)
        self.measurements += 1


rng = torch.Generator().manual_seed(23)
springs = Springs(rng).to(DEVICE)
bench = Bench(springs)
place = torch.randn(BATCH, MASSES, generator=rng).to(DEVICE)
speed = torch.randn(BATCH, MASSES, generator=rng).to(DEVICE)


def step():
    with torch.no_grad():
        force = springs(place, speed)
        energy = (force * speed).sum(-1)
    return force, energy


def vary():
    place.copy_(torch.randn(BATCH, MASSES, generator=rng))
    speed.copy_(torch.randn(BATCH, MASSES, generator=rng))
    bench.damp(torch.rand(MASSES, generator=rng))
    bench.measured(torch.randn(MASSES, MASSES, generator=rng))
