# Kalman filter on a robot: time between measurements is not constant
import torch

torch.manual_seed(15)


class Kalman:
    def __init__(self):
        self.x = torch.zeros(2, 1, device="cpu")
        self.P = torch.eye(2, device="cpu")
        self.R = torch.tensor([[0.2]], device="cpu")
        self.Hm = torch.tensor([[1.0, 0.0]], device="cpu")
        self.eye = torch.eye(2, device="cpu")
        self.shift = torch.tensor([[0.0, 1.0], [0.0, 0.0]], device="cpu")

    def predict(self, dt):
        Fm = self.eye + dt * self.shift
        self.x.copy_(Fm @ self.x)
        self.P.copy_(Fm @ self.P @ Fm.t() + 0.01 * self.eye)

    def update(self, z):
        S = self.Hm @ self.P @ self.Hm.t() + self.R
        K = self.P @ self.Hm.t() / S
        self.x.add_(K @ (z - self.Hm @ self.x))
        self.P.copy_((self.eye - K @ self.Hm) @ self.P)


class Clock:
    now, last, frame_id, sensor = 0.1, 0.0, 0, "lidar"


kf = Kalman()
z = torch.tensor([[1.0]], device="cpu")
dt_dev = torch.tensor(0.1, device="cpu")


def step():
    kf.predict(dt_dev)
    kf.update(z)
    return kf.x.clone(), kf.P.clone()


def vary():
    Clock.frame_id += 1
    Clock.sensor = "lidar" if Clock.frame_id % 3 else "sonar"
    Clock.last, Clock.now = Clock.now, Clock.now + 0.1 + 0.03 * Clock.frame_id
    dt_dev.fill_(Clock.now - Clock.last)
    z.add_(0.3)
