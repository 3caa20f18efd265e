"""Constant-velocity tracker with a steady-state Kalman gain.

The gain follows from the noise covariances by a fixed-point iteration.  It is
expensive next to the update itself, hence computed once per noise setting.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class NoiseModel:
    """Process and measurement covariance, tuned at run time."""

    def __init__(self):
        self.process = torch.diag(torch.full((4,), 0.05, device=DEVICE))
        self.measurement = torch.diag(torch.full((2,), 0.4, device=DEVICE))

    def set_measurement(self, variance):
        self.measurement.diagonal().fill_(variance)


class Tracker:
    def __init__(self, targets=12, dt=0.1, seed=51):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.noise = NoiseModel()
        eye = torch.eye(4, device=DEVICE)
        self.F = eye.clone()
        self.F[0, 2] = dt
        self.F[1, 3] = dt
        self.H = eye[:2].clone()
        self.x = torch.zeros(targets, 4, device=DEVICE)
        self.z = torch.randn(targets, 2, device=DEVICE, generator=self.rng)
        self._gain = None
        self.retune(0.4)

    @property
    def gain(self):
        if self._gain is None:
            self._gain = self._solve()
        return self._gain

    def _solve(self, iterations=60):
        P = torch.eye(4, device=DEVICE)
        for _ in range(iterations):
            P = self.F @ P @ self.F.T + self.noise.process
            S = self.H @ P @ self.H.T + self.noise.measurement
            K = P @ self.H.T @ self._inv2(S)
            P = P - K @ self.H @ P
        return K

    @staticmethod
    def _inv2(S):
        a, b, c, d = S[0, 0], S[0, 1], S[1, 0], S[1, 1]
        adj = torch.stack([torch.stack([d, -b]), torch.stack([-c, a])])
        return adj / (a * d - b * c)

    def retune(self, variance):
        """New sensor mode: drop the old gain and have the next one ready."""
        self.noise.set_measurement(variance)
        self._gain = None
        return self.gain

    def measure(self):
        self.z.normal_(generator=self.rng)

    def update(self):
        pred = self.x @ self.F.T
        innovation = self.z - pred @ self.H.T
        self.x.copy_(pred + innovation @ self.gain.T)
        return self.x, innovation.square().mean(0)


tracker = Tracker()
_modes = iter([0.4, 0.4, 1.5, 1.5, 0.1, 0.1] * 8)
_mode = 0.4


def step():
    return tracker.update()


def vary():
    global _mode
    tracker.measure()
    mode = next(_modes)
    if mode != _mode:
        _mode = mode
        tracker.retune(mode)


def reset():
    tracker.x.zero_()
