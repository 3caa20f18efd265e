"""Poisson's equation by multigrid V-cycles on a square, zero at the edges.

A solver that is new to a problem starts carefully, with one level, and takes further levels in on later
solves, as far as the grid allows.
"""

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N = 16


class Levels:
    """How many grids take part: one more with each solve that has been done, up to `most`."""

    def __init__(self, most):
        self.most, self.solves = most, 0

    def __iter__(self):
        yield from range(min(self.most, 1 + self.solves))

    def __len__(self):
        return sum(1 for _ in self)


class Multigrid:
    kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], device=DEVICE)[None, None]

    def __init__(self, n, most):
        self.levels = Levels(most)
        self.rhs = torch.zeros(1, 1, n, n, device=DEVICE)

    def neighbours(self, u):
        return F.conv2d(u, self.kernel, padding=1)

    def smooth(self, u, f, h, times, damping=0.8):
        for _ in range(times):
            u = u + damping * ((self.neighbours(u) + h * h * f) / 4.0 - u)
        return u

    def residual(self, u, f, h):
        return f - (4.0 * u - self.neighbours(u)) / (h * h)

    def cycle(self, f, level, h):
        u = self.smooth(torch.zeros_like(f), f, h, times=2)
        if level + 1 < len(self.levels):
            coarse = F.avg_pool2d(self.residual(u, f, h), 2)
            correction = self.cycle(coarse, level + 1, 2 * h)
            u = u + F.interpolate(correction, scale_factor=2, mode="bilinear", align_corners=False)
        return self.smooth(u, f, h, times=2 if level + 1 < len(self.levels) else 6)

    def solve(self, cycles=2):
        h = 1.0 / (N + 1)
        u = torch.zeros_like(self.rhs)
        for _ in range(cycles):
            u = u + self.cycle(self.residual(u, self.rhs, h), 0, h)
        self.levels.solves += 1
        return u, self.residual(u, self.rhs, h)


class Charges:
    """A few point charges that are moved between solves."""

    def __init__(self, count):
        self.gen = torch.Generator().manual_seed(101)
        self.count = count

    def place(self, field):
        spots = torch.randint(2, N - 2, (self.count, 2), generator=self.gen)
        values = 100.0 * torch.randn(self.count, generator=self.gen)
        made = torch.zeros(N, N)
        made.index_put_((spots[:, 0], spots[:, 1]), values, accumulate=True)
        field[0, 0].copy_(made)


solver = Multigrid(N, most=2)
charges = Charges(count=5)
charges.place(solver.rhs)


def step():
    u, residual = solver.solve()
    return {"potential": u[0, 0], "residual": residual.abs().amax()}


def vary():
    charges.place(solver.rhs)
