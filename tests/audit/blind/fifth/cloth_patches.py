"""Cloth as a grid of masses and springs, relaxed patch by patch.

The patches take turns at being first, so that no corner of the cloth is always served before the others.
"""

from collections import deque
from dataclasses import dataclass
from functools import partial

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, COLS, SWEEPS = 12, 12, 3


@dataclass(eq=False)
class Patch:
    rows: slice
    cols: slice

    def of(self, field):
        return field[self.rows, self.cols]


def spring_force(points, rest, stiffness):
    """Sum of the forces of the four springs at each point."""
    force = torch.zeros_like(points)
    for dim in (0, 1):
        span = points.narrow(dim, 1, points.shape[dim] - 1) - points.narrow(dim, 0, points.shape[dim] - 1)
        length = span.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        pull = stiffness * (1.0 - rest / length) * span
        force.narrow(dim, 0, points.shape[dim] - 1).add_(pull)
        force.narrow(dim, 1, points.shape[dim] - 1).sub_(pull)
    return force


class Cloth:
    def __init__(self):
        self.start = torch.zeros(ROWS, COLS, 3, device=DEVICE)
        self.points = torch.zeros_like(self.start)
        self.before = torch.zeros_like(self.start)
        self.wind = torch.zeros(3, device=DEVICE)
        self.free = torch.ones(ROWS, COLS, 1, device=DEVICE)
        self.free[0] = 0.0
        self.force = partial(spring_force, rest=1.0, stiffness=0.4)
        half = ROWS // 2
        sides = (slice(0, half), slice(half, None))
        self.patches = deque(Patch(r, c) for r in sides for c in sides)

    def sweep(self):
        self.before.copy_(self.points)
        force = self.force(self.before) + self.wind
        for patch in self.patches:
            moved = patch.of(self.before) + 0.5 * patch.of(force) * patch.of(self.free)
            patch.of(self.points).copy_(moved)
        self.patches.rotate(1)

    def relax(self):
        self.points.copy_(self.start)
        for _ in range(SWEEPS):
            self.sweep()
        stretch = (self.points[1:] - self.points[:-1]).norm(dim=-1)
        return self.points.clone(), stretch.amax()


cloth = Cloth()
gen = torch.Generator().manual_seed(55)
yy, xx = torch.meshgrid(torch.arange(ROWS), torch.arange(COLS), indexing="ij")
flat = torch.stack([xx, yy, torch.zeros_like(xx)], -1).float()


def vary():
    cloth.start.copy_(flat + 0.3 * torch.randn(ROWS, COLS, 3, generator=gen))
    cloth.wind.copy_(0.1 * torch.randn(3, generator=gen))


vary()


def step():
    points, stretch = cloth.relax()
    return {"points": points, "stretch": stretch}
