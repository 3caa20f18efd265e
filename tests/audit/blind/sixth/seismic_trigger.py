"""Short-term over long-term average of a seismometer, over a mirrored ring.

Each sample is written twice, one length apart, so that the latest samples always lie in one piece.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH, SHORT, STATIONS = 16, 4, 3


class Wrapping:
    """An integer attribute that stays within the length of its owner's ring."""

    def __set_name__(self, owner, name):
        self.slot = "_" + name

    def __get__(self, owner, kind=None):
        return self if owner is None else getattr(owner, self.slot, 0)

    def __set__(self, owner, value):
        setattr(owner, self.slot, value % LENGTH)


class Ring:
    """Samples of all stations."""

    head = Wrapping()

    def __init__(self, rng: torch.Generator):
        once = torch.randn(STATIONS, LENGTH, generator=rng)
        self.samples = torch.cat([once, once], 1).to(DEVICE)

    def push(self, sample: torch.Tensor) -> None:
        sample = sample.to(DEVICE)
        self.samples[:, self.head] = sample
        self.samples[:, self.head + LENGTH] = sample
        self.head += 1

    @property
    def latest(self) -> torch.Tensor:
        """All samples, the oldest first."""
        return self.samples.as_strided((STATIONS, LENGTH), (2 * LENGTH, 1), self.head)


class Trigger:
    """What the stations report."""

    def __init__(self, ring: Ring, threshold: float):
        self.ring = ring
        self.threshold = torch.full((STATIONS,), threshold, device=DEVICE)

    def __call__(self) -> dict[str, torch.Tensor]:
        power = self.ring.latest.square()
        ratio = power[:, -SHORT:].mean(1) / power.mean(1)
        return {"ratio": ratio, "fired": (ratio > self.threshold).float()}


rng = torch.Generator().manual_seed(41)
ring = Ring(rng)
trigger = Trigger(ring, 1.2)
ticks = 0


def step():
    return trigger()


def vary():
    global ticks
    ticks += 1
    for _ in range(3):
        ring.push((1 + ticks) * torch.randn(STATIONS, generator=rng))
    trigger.threshold.fill_(1.0 + 0.1 * ticks)
