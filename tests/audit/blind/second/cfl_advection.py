from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Grid:
    cells: int = 12
    spacing: float = 0.1

    def centers(self):
        return (torch.arange(self.cells, dtype=torch.float32, device=DEVICE) + 0.5) * self.spacing


class TimeControl:
    def __init__(self, grid, courant=0.5, longest=0.05):
        self.grid, self.courant, self.longest = grid, courant, longest
        self.dt = longest
        self.time = 0.0

    def update(self, speed):
        fastest = float(speed.abs().max())
        self.dt = min(self.longest, self.courant * self.grid.spacing / max(fastest, 1e-6))
        self.time += self.dt


class Advection:
    def __init__(self, grid):
        self.grid = grid
        self.density = torch.exp(-(grid.centers() - 0.5).square() * 20)
        self.speed = torch.ones(grid.cells, device=DEVICE)
        self.control = TimeControl(grid)

    def flux(self):
        left = torch.roll(self.density, 1)
        right = torch.roll(self.density, -1)
        upwind = torch.where(self.speed > 0, self.density - left, right - self.density)
        return -self.speed * upwind / self.grid.spacing

    def advance(self):
        first = self.flux()
        self.density.add_(first, alpha=self.control.dt)
        return self.density.clone(), self.density.sum()


simulation = Advection(Grid())
forecast = [2.0, 0.8, 0.5, 3.5, 1.0] * 100
winds = iter(forecast)


def step():
    return simulation.advance()


def vary():
    strength = next(winds)
    wave = 1.0 + 0.3 * torch.sin(simulation.grid.centers() * 7)
    simulation.speed.copy_(strength * wave)
    simulation.control.update(simulation.speed)


def reset():
    global winds
    winds = iter(forecast)
    simulation.density.copy_(torch.exp(-(simulation.grid.centers() - 0.5).square() * 20))
    simulation.speed.fill_(1)
    simulation.control = TimeControl(simulation.grid)
