"""Damped membrane on a square grid, explicit leap-frog scheme.

Three time levels are rotated between sub-steps instead of being copied.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Levels:
    """Past, present and future displacement; rotation renames them."""

    def __init__(self, n):
        self.past, self.now, self.future = (torch.zeros(n, n, device=DEVICE) for _ in range(3))

    def rotate(self):
        self.past, self.now, self.future = self.now, self.future, self.past


class Membrane:
    def __init__(self, n=24, substeps=6, seed=81):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.levels = Levels(n)
        self.substeps = substeps
        self.clock = 0
        self.courant2 = torch.full((), 0.2, device=DEVICE)
        self.damping = torch.full((), 0.02, device=DEVICE)
        self.drive = torch.zeros(n, n, device=DEVICE)
        self.mics = torch.tensor([30, 77, 200, 411], device=DEVICE)
        self.strike()

    def strike(self):
        """A new blow of the mallet somewhere on the skin."""
        self.drive.normal_(generator=self.rng).mul_(0.1)
        self.drive[0].zero_()
        self.drive[-1].zero_()
        self.drive[:, 0].zero_()
        self.drive[:, -1].zero_()

    def retension(self, factor):
        self.courant2.mul_(factor)

    def _advance(self):
        u, v, w = self.levels.now, self.levels.past, self.levels.future
        c = u[1:-1, 1:-1]
        lap = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * c
        keep = 1 - self.damping
        nxt = c + keep * (c - v[1:-1, 1:-1]) + self.courant2 * lap
        w[1:-1, 1:-1].copy_(nxt + 0.01 * self.drive[1:-1, 1:-1])
        self.levels.rotate()
        self.clock += 1

    def block(self):
        """One audio block: `substeps` samples at each microphone."""
        samples = []
        for _ in range(self.substeps):
            self._advance()
            samples.append(self.levels.now.flatten()[self.mics])
        return torch.stack(samples)

    @property
    def seconds(self):
        return self.clock / 44100.0


membrane = Membrane()
_blocks = 0


def step():
    return membrane.block()


def vary():
    global _blocks
    _blocks += 1
    membrane.strike()
    if _blocks % 2:
        membrane.retension(0.9 + 0.01 * _blocks)


def reset():
    for level in (membrane.levels.past, membrane.levels.now, membrane.levels.future):
        level.zero_()
    membrane.clock = 0
