"""Ensemble of Lorenz-63 trajectories integrated with classical RK4.

The integrator asks a step-size plan for the next width.  A plan is a
generator: small widths after each restart, then widening up to a ceiling.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def widening(first, factor, ceiling):
    """Yield first, first*factor, ... never above the ceiling."""
    width = first
    while True:
        yield width
        width = min(width * factor, ceiling)


class Lorenz:
    def __init__(self, sigma=10.0, rho=28.0, beta=8.0 / 3.0):
        self.sigma = sigma
        self.beta = beta
        self.rho = torch.full((), rho, device=DEVICE)

    def __call__(self, s):
        x, y, z = s.unbind(-1)
        return torch.stack((self.sigma * (y - x), x * (self.rho - z) - y, x * y - self.beta * z), dim=-1)


class RK4:
    """Fixed-order integrator; the width of each step comes from a plan."""

    def __init__(self, field, plan):
        self.field = field
        self.plan = plan
        self.taken = 0

    def advance(self, s):
        h = next(self.plan)
        f = self.field
        k1 = f(s)
        k2 = f(s + 0.5 * h * k1)
        k3 = f(s + 0.5 * h * k2)
        k4 = f(s + h * k3)
        self.taken += 1
        return s + (h / 6.0) * (k1 + 2 * k2 + 2 * k3 + k4)


class Ensemble:
    def __init__(self, members=20, seed=9):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.state = torch.empty(members, 3, device=DEVICE)
        self.kick = torch.zeros(members, 3, device=DEVICE)
        self.field = Lorenz()
        self.restart()

    def restart(self):
        self.state.fill_(1.0)
        self.state[:, 0].add_(torch.linspace(-0.5, 0.5, self.state.shape[0], device=DEVICE))
        self.solver = RK4(self.field, widening(0.002, 1.15, 0.02))

    def perturb(self):
        self.kick.normal_(generator=self.rng).mul_(0.02)

    def forecast(self):
        moved = self.solver.advance(self.state + self.kick)
        self.state.copy_(moved)
        mean = moved.mean(0)
        spread = (moved - mean).square().mean(0).sqrt()
        return mean, spread


ensemble = Ensemble()


def step():
    return ensemble.forecast()


def vary():
    """New observation noise; the forcing drifts with the season."""
    ensemble.perturb()
    ensemble.field.rho.add_(0.05)
