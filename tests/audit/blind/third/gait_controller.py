"""Joint torques of a quadruped: impedance control around the reference of the gait in use."""

import math
from abc import ABC, abstractmethod

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
JOINTS = 12


class Gait(ABC):
    stiffness = 40.0
    damping = 1.5

    def __init__(self, offsets):
        legs = torch.tensor(offsets, device=DEVICE).repeat_interleave(3)
        self.offset = 2 * math.pi * legs
        self.neutral = torch.tensor([0.0, 0.7, -1.4], device=DEVICE).repeat(4)

    @abstractmethod
    def reference(self, phase): ...

    def torque(self, q, qd, phase):
        error = self.reference(phase) - q
        return self.stiffness * error - self.damping * qd


class Trot(Gait):
    def __init__(self):
        super().__init__([0.0, 0.5, 0.5, 0.0])

    def reference(self, phase):
        return self.neutral + 0.25 * torch.sin(phase + self.offset)


class Crawl(Gait):
    stiffness = 65.0

    def __init__(self):
        super().__init__([0.0, 0.5, 0.25, 0.75])

    def reference(self, phase):
        swing = torch.relu(torch.sin(phase + self.offset))
        return self.neutral + 0.15 * swing * swing


class Locomotion:
    def __init__(self):
        self._gaits = {"trot": Trot(), "crawl": Crawl()}
        self._name = "trot"
        self.q = torch.zeros(JOINTS, device=DEVICE)
        self.qd = torch.zeros(JOINTS, device=DEVICE)
        self.phase = torch.zeros((), device=DEVICE)
        self.limit = torch.full((JOINTS,), 33.5, device=DEVICE)

    @property
    def gait(self):
        return self._gaits[self._name]

    @gait.setter
    def gait(self, name):
        if name not in self._gaits:
            raise KeyError(f"no gait called {name}")
        self._name = name

    def observe(self, tick):
        joints = torch.arange(JOINTS)
        self.q.copy_(0.3 * torch.sin(joints * 0.9 + tick))
        self.qd.copy_(0.8 * torch.cos(joints * 0.4 - tick))
        self.phase.fill_(0.37 * tick)

    def command(self):
        tau = self.gait.torque(self.q, self.qd, self.phase)
        return torch.minimum(torch.maximum(tau, -self.limit), self.limit)


robot = Locomotion()
robot.observe(0)
ticks = 0


def step():
    return robot.command()


def vary():
    global ticks
    ticks += 1
    slope = 0.1 * ticks
    robot.gait = "crawl" if slope > 0.35 else "trot"
    robot.observe(ticks)
