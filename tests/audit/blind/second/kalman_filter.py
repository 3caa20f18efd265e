from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Motion:
    period: float = 0.1
    process_noise: float = 0.02
    sensor_noise: float = 0.3


class KalmanFilter:
    def __init__(self, motion):
        self.motion = motion
        self.state = torch.zeros(2, device=DEVICE)
        self.covariance = torch.eye(2, device=DEVICE)
        self.measured = torch.zeros(1, device=DEVICE)
        self.gain = None
        self.updates = 0

    def transition(self):
        model = torch.eye(2, device=DEVICE)
        model[0, 1].fill_(self.motion.period)
        return model

    def predict(self):
        f = self.transition()
        noise = self.motion.process_noise * torch.eye(2, device=DEVICE)
        self.state.copy_(f @ self.state)
        self.covariance.copy_(f @ self.covariance @ f.T + noise)

    def correct(self):
        h = torch.zeros(1, 2, device=DEVICE)
        h[0, 0].fill_(1.0)
        innovation = self.measured - h @ self.state
        s = h @ self.covariance @ h.T + self.motion.sensor_noise
        self.gain = self.covariance @ h.T / s
        self.state.add_(self.gain @ innovation)
        self.covariance.sub_(self.gain @ h @ self.covariance)

    def update(self):
        self.predict()
        self.correct()
        self.updates += 1
        return self.state.clone(), self.covariance.diagonal().clone()


class Tracker:
    def __init__(self):
        self.filter, self.tick = KalmanFilter(Motion()), 0

    def sense(self):
        self.tick += 1
        self.filter.measured.fill_(0.4 * self.tick + 0.1 * (-1) ** self.tick)

    def forget(self):
        self.tick, self.filter.updates, self.filter.gain = 0, 0, None
        self.filter.state.zero_()
        self.filter.measured.zero_()
        self.filter.covariance.copy_(torch.eye(2))


def make_engine():
    tracker = Tracker()
    return SimpleNamespace(step=tracker.filter.update, vary=tracker.sense, reset=tracker.forget)
