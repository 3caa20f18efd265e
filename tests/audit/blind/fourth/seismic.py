"""Acoustic waves in a layered section: three time levels, second order in time, receivers at the surface."""

import math
from collections import deque

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DEPTH, WIDTH = 22, 30
LEVELS = 3


def ricker(t, peak=6.0):
    a = (math.pi * peak * (t - 0.12)) ** 2
    return (1 - 2 * a) * math.exp(-a)


class Section:
    """Pressure at the last, the present and the next instant; the levels trade places as time moves."""

    def __init__(self):
        speed = torch.full((DEPTH, WIDTH), 0.3)
        speed[8:15] = 0.42
        speed[15:] = 0.55
        self.courant = (speed**2).to(DEVICE)
        self.levels = deque(torch.zeros(DEPTH, WIDTH, device=DEVICE) for _ in range(LEVELS))
        star = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.star = star.view(1, 1, 3, 3).to(DEVICE)
        edge = torch.ones(DEPTH, WIDTH)
        for i in range(4):
            fade = 1 - 0.02 * (4 - i) ** 2
            edge[DEPTH - 1 - i] *= fade
            edge[:, i] *= fade
            edge[:, WIDTH - 1 - i] *= fade
        self.sponge = edge.to(DEVICE)
        self.source = torch.zeros(DEPTH, WIDTH, device=DEVICE)
        self.pulse = torch.zeros(LEVELS, device=DEVICE)
        self.traces = torch.zeros(LEVELS, WIDTH, device=DEVICE)
        self.ticks = 0

    def tick(self):
        past, present, future = self.levels
        bend = F.conv2d(present[None, None], self.star, padding=1)[0, 0]
        torch.add(2 * present - past, self.courant * bend, out=future)
        future.add_(self.source * self.pulse[self.ticks % LEVELS]).mul_(self.sponge)
        present.mul_(self.sponge)
        self.traces[self.ticks % LEVELS].copy_(future[1])
        self.levels.rotate(-1)
        self.ticks += 1


section = Section()
shot = 0
survey = torch.Generator().manual_seed(80)


@torch.no_grad()
def step():
    for _ in range(LEVELS):
        section.tick()


def vary():
    """The wavelet goes on; every other time the source moves along the line."""
    global shot
    pulse = [ricker(0.02 * (LEVELS * shot + i)) + 0.3 for i in range(LEVELS)]
    section.pulse.copy_(torch.tensor(pulse))
    if shot % 2 == 0:
        section.source.zero_()
        section.source[2, int(torch.randint(4, WIDTH - 4, (), generator=survey))] = 1.0
    shot += 1


def reset():
    global shot
    shot = 0
    survey.manual_seed(80)
    for level in section.levels:
        level.zero_()
    section.traces.zero_()
    section.source.zero_()
