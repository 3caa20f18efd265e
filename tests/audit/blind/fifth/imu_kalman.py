"""Constant-velocity Kalman filter for a planar robot. Position fixes come at uneven times.

Transition and process noise depend on the time between fixes; sensors round it to whole milliseconds, so
few different ones occur and the matrices are made once for each.
"""

from collections import deque
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Motion:
    transition: torch.Tensor
    noise: torch.Tensor


class MotionTable:
    def __init__(self, density):
        self.density = density
        self._made = {}

    def __call__(self, millis):
        if millis not in self._made:
            dt = millis / 1000.0
            transition = torch.eye(4, device=DEVICE)
            transition.diagonal(2).fill_(dt)
            noise = torch.zeros(4, 4, device=DEVICE)
            noise.diagonal().fill_(self.density * dt)
            noise.diagonal(2).fill_(self.density * dt**2 / 2)
            noise.diagonal(-2).fill_(self.density * dt**2 / 2)
            self._made[millis] = Motion(transition, noise)
        return self._made[millis]


class Stamps:
    """Arrival times of the last fixes, in milliseconds."""

    def __init__(self, period):
        self._times = deque([0, period], maxlen=8)

    def mark(self, later_by):
        self._times.append(self._times[-1] + later_by)

    @property
    def gap(self):
        return self._times[-1] - self._times[-2]


class Tracker:
    def __init__(self):
        self.stamps = Stamps(period=100)
        self.motion = MotionTable(density=2.0)
        self.mean = torch.zeros(4, device=DEVICE)
        self.cov = torch.eye(4, device=DEVICE)
        self.observe = torch.eye(2, 4, device=DEVICE)
        self.sensor = 0.05 * torch.eye(2, device=DEVICE)
        self.fix = torch.zeros(2, device=DEVICE)
        for usual in (50, 100, 400, 900):
            self.motion(usual)

    def predict(self):
        model = self.motion(self.stamps.gap)
        self.mean.copy_(model.transition @ self.mean)
        self.cov.copy_(model.transition @ self.cov @ model.transition.T + model.noise)

    def correct(self):
        spread = self.observe @ self.cov @ self.observe.T + self.sensor
        (a, b), (c, d) = spread.unbind(0)[0].unbind(0), spread.unbind(0)[1].unbind(0)
        adjugate = torch.stack([torch.stack([d, -b]), torch.stack([-c, a])])
        gain = self.cov @ self.observe.T @ (adjugate / (a * d - b * c))
        self.mean.add_(gain @ (self.fix - self.observe @ self.mean))
        self.cov.copy_((torch.eye(4, device=DEVICE) - gain @ self.observe) @ self.cov)


tracker = Tracker()
gen = torch.Generator().manual_seed(8)
arrivals = iter([100, 900, 50, 400, 900, 100, 50, 400, 900, 100] * 4)
truth = torch.tensor([0.5, -0.2])


def step():
    tracker.predict()
    tracker.correct()
    return tracker.mean.clone(), tracker.cov.diagonal().clone()


def vary():
    later_by = next(arrivals)
    tracker.stamps.mark(later_by)
    truth.add_(torch.tensor([1.5, 0.7]) * later_by / 1000.0)
    tracker.fix.copy_(truth + 0.1 * torch.randn(2, generator=gen))


def reset():
    tracker.mean.zero_()
    tracker.cov.copy_(torch.eye(4))
