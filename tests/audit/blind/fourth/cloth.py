"""A hanging strip of cloth: masses and springs under gusts of wind, explicit integration."""

from dataclasses import dataclass, replace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COLUMNS, ROWS = 6, 5
FRAME = 1 / 30


@dataclass(frozen=True)
class Material:
    stiffness: float = 60.0
    damping: float = 0.4
    mass: float = 0.2


@dataclass(frozen=True)
class Resolution:
    """How finely a frame is cut in time."""

    pieces: int = 2

    @property
    def dt(self):
        return FRAME / self.pieces


class Cloth:
    def __init__(self, material=Material()):
        self.material = material
        self.resolution = Resolution()
        grid = torch.meshgrid(torch.arange(ROWS), torch.arange(COLUMNS), indexing="ij")
        self.rest = torch.stack([grid[1], -grid[0], torch.zeros(ROWS, COLUMNS)], -1).float().to(DEVICE)
        self.place = self.rest.clone()
        self.speed = torch.zeros_like(self.place)
        self.wind = torch.zeros(3, device=DEVICE)
        self.gravity = torch.tensor([0.0, -1.5, 0.0], device=DEVICE)

    def pull(self, dim):
        gap = self.place.diff(dim=dim)
        length = gap.norm(dim=-1, keepdim=True).clamp_min(1e-4)
        return self.material.stiffness * (length - 1.0) * gap / length

    def force(self):
        force = self.material.mass * self.gravity + self.wind - self.material.damping * self.speed
        down, across = self.pull(0), self.pull(1)
        force = force.clone()
        force[:-1] += down
        force[1:] -= down
        force[:, :-1] += across
        force[:, 1:] -= across
        return force

    def advance(self):
        for _ in range(self.resolution.pieces):
            self.speed.add_(self.force(), alpha=self.resolution.dt / self.material.mass)
            self.speed[0].zero_()
            self.place.add_(self.speed, alpha=self.resolution.dt)

    def gust(self, strength, direction):
        """A stronger wind moves the cloth faster, which takes shorter steps."""
        self.wind.copy_(strength * direction)
        self.resolution = replace(self.resolution, pieces=2 + int(strength / 0.2))


cloth = Cloth()
GUSTS = [0.1, 0.15, 0.45, 0.7, 0.3]
weather = torch.Generator().manual_seed(9)
frame = 0


@torch.no_grad()
def step():
    cloth.advance()
    return cloth.place.clone()


def vary():
    global frame
    direction = torch.nn.functional.normalize(torch.randn(3, generator=weather), dim=0)
    cloth.gust(GUSTS[frame % len(GUSTS)], direction)
    frame += 1


def reset():
    global frame
    frame = 0
    weather.manual_seed(9)
    cloth.place.copy_(cloth.rest)
    cloth.speed.zero_()
