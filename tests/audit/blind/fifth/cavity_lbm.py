"""Lattice Boltzmann (D2Q9) in a periodic box: one call of `step` is a few collide-and-stream cycles.

Two sets of populations take turns: each cycle reads one and writes the other. A request starts from a new
density and velocity field, and the moments after the last cycle are what it asks for.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
N, CYCLES = 16, 6
OFFSETS = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))


class Populations:
    """The pair of sets, with the one that is read now in front."""

    def __init__(self):
        self.front = torch.zeros(9, N, N, device=DEVICE)
        self.back = torch.zeros(9, N, N, device=DEVICE)

    def turn(self):
        self.front, self.back = self.back, self.front


class Box:
    weights = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, device=DEVICE)[:, None, None]
    directions = torch.tensor(OFFSETS, dtype=torch.float32, device=DEVICE)

    def __init__(self, relaxation=0.8):
        self.sets = Populations()
        self.relaxation = relaxation
        self.cycles_done = 0

    def equilibrium(self, rho, u):
        along = torch.einsum("qd,dxy->qxy", self.directions, u)
        speed2 = u.square().sum(0)
        return self.weights * rho * (1.0 + 3.0 * along + 4.5 * along.square() - 1.5 * speed2)

    def moments(self, f):
        rho = f.sum(0)
        return rho, torch.einsum("qd,qxy->dxy", self.directions, f) / rho

    def cycle(self):
        f, g = self.sets.front, self.sets.back
        after = f + (self.equilibrium(*self.moments(f)) - f) / self.relaxation
        for q, shift in enumerate(OFFSETS):
            g[q].copy_(torch.roll(after[q], shift, dims=(0, 1)))
        self.sets.turn()
        self.cycles_done += 1

    def start(self, rho, u):
        self.sets.front.copy_(self.equilibrium(rho, u))


box = Box()
gen = torch.Generator().manual_seed(19)


def smooth(*shape):
    noise = torch.randn(*shape, N, N, generator=gen)
    for dim in (-2, -1):
        noise = (noise + noise.roll(1, dim) + noise.roll(-1, dim)) / 3.0
    return noise.to(DEVICE)


def vary():
    box.start(1.0 + 0.05 * smooth(), 0.05 * smooth(2))


vary()


def step():
    for _ in range(CYCLES):
        box.cycle()
    rho, u = box.moments(box.sets.front)
    return rho, u
