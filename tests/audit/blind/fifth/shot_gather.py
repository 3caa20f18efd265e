"""Acoustic shot gather: second-order wave equation in two dimensions with a sponge at the edges.

Three time levels are kept. Each call of `step` computes one time level and samples it at the receivers.
"""

import math

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NX = NZ = 24


class Medium:
    def __init__(self, dt=0.5):
        depth = torch.linspace(0.8, 1.2, NZ)
        self.courant2 = ((depth * dt) ** 2)[:, None].expand(NZ, NX).contiguous().to(DEVICE)
        edge = torch.ones(NZ, NX)
        for i in range(4):
            edge[i, :] *= 0.90 + 0.02 * i
            edge[-1 - i, :] *= 0.90 + 0.02 * i
            edge[:, i] *= 0.90 + 0.02 * i
            edge[:, -1 - i] *= 0.90 + 0.02 * i
        self.sponge = edge.to(DEVICE)


class Receivers:
    def __init__(self, row, columns):
        self.flat = torch.tensor([row * NX + c for c in columns], device=DEVICE)

    def sample(self, level):
        return level.reshape(-1).index_select(0, self.flat)


class Propagator:
    """Owns the time levels; the oldest one is overwritten by the newest."""

    stencil = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]], device=DEVICE)[None, None]

    def __init__(self, medium, receivers):
        self.medium, self.receivers = medium, receivers
        yy, xx = torch.meshgrid(torch.arange(NZ), torch.arange(NX), indexing="ij")
        self.pulse = torch.exp(-((yy - 9.0) ** 2 + (xx - 12.0) ** 2) / 6.0).to(DEVICE)
        self.levels = [self.pulse.clone(), self.pulse.clone(), torch.zeros_like(self.pulse)]
        self.source = torch.zeros((), device=DEVICE)

    def _advance(self, older, newer, target):
        lap = F.conv2d(newer[None, None], self.stencil, padding=1)[0, 0]
        fresh = 2.0 * newer - older + self.medium.courant2 * lap
        fresh[4, 12] += self.source
        target.copy_(fresh * self.medium.sponge)

    def tick(self):
        self._advance(*self.levels)
        self.levels.append(self.levels.pop(0))
        return self.receivers.sample(self.levels[1])


class Ricker:
    def __init__(self, peak=0.12):
        self.peak, self.n = peak, 0

    def __next__(self):
        self.n += 1
        arg = (math.pi * self.peak * (self.n - 4)) ** 2
        return (1.0 - 2.0 * arg) * math.exp(-arg)


wavelet = Ricker()
survey = Propagator(Medium(), Receivers(row=7, columns=range(4, 20, 2)))


def step():
    return survey.tick()


def vary():
    survey.source.fill_(next(wavelet))


def reset():
    older, newer, spare = survey.levels
    older.copy_(survey.pulse)
    newer.copy_(survey.pulse)
    spare.zero_()
