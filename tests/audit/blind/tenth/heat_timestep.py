"""Explicit heat equation: a controller outside the step adapts the time step."""

from types import SimpleNamespace

import torch

CELLS = 64
KAPPA = 1.0


class Explicit:
    """Grid and stencil; solvers say their time step as a class attribute."""

    dt = 0.4

    def __init__(self, seed=101):
        self.gen = torch.Generator().manual_seed(seed)
        self.u = torch.rand(CELLS, generator=self.gen)
        self.source = torch.zeros(CELLS)
        self.clock = torch.zeros((), dtype=torch.float64)

    def laplacian(self):
        return torch.roll(self.u, 1) + torch.roll(self.u, -1) - 2 * self.u


def build_solver():
    class HeatSolver(Explicit):
        tick = 0

        def control(self):
            """A strong source asks for smaller steps, a quiet one allows longer ones."""
            quiet = self.tick % 8 < 4
            type(self).dt = 0.4 if quiet else 0.1

        def vary(self):
            type(self).tick += 1
            self.control()
            self.source.copy_(0.1 * torch.rand(CELLS, generator=self.gen))

        def step(self):
            dt = self.dt
            change = KAPPA * self.laplacian() + self.source
            self.u.add_(change * dt)
            self.clock.add_(dt)
            return self.u.mean(), self.u.amax()

    return HeatSolver()


def make():
    solver = build_solver()
    solver.vary()
    return SimpleNamespace(step=solver.step, vary=solver.vary)
