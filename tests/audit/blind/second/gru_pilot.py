from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class PilotConfig:
    sensors: int = 5
    hidden: int = 6
    motors: int = 2
    telemetry: int = 64


def matrix(rows, cols, phase):
    return (
        (0.6 * torch.sin(torch.arange(rows * cols, dtype=torch.float32) * 1.3 + phase))
        .view(rows, cols)
        .to(DEVICE)
    )


class Cell:
    def __init__(self, config: PilotConfig):
        size = config.sensors + config.hidden
        self.update, self.gate, self.candidate = (matrix(size, config.hidden, p) for p in (0.1, 1.1, 2.1))

    def __call__(self, x, h):
        both = torch.cat([x, h], dim=-1)
        z, r = torch.sigmoid(both @ self.update), torch.sigmoid(both @ self.gate)
        n = torch.tanh(torch.cat([x, r * h], dim=-1) @ self.candidate)
        return (1 - z) * h + z * n


class Pilot:
    def __init__(self, config: PilotConfig):
        self.config = config
        self.cell = Cell(config)
        self.readout = matrix(config.hidden, config.motors, 0.5)
        self.sensors = torch.zeros(1, config.sensors, device=DEVICE)
        self.hidden = torch.zeros(1, config.hidden, device=DEVICE)
        self.telemetry = deque(maxlen=config.telemetry)
        self.tick = 0

    def sense(self):
        self.tick += 1
        reading = torch.cos(torch.arange(self.config.sensors, dtype=torch.float32) * self.tick)
        self.sensors.copy_(reading[None])

    def control(self):
        self.telemetry.append(self.hidden)
        self.hidden = self.cell(self.sensors, self.hidden)
        return torch.tanh(self.hidden @ self.readout)

    def rest(self):
        self.hidden = torch.zeros(1, self.config.hidden, device=DEVICE)
        self.sensors.zero_()
        self.telemetry.clear()
        self.tick = 0


def make_engine():
    pilot = Pilot(PilotConfig())
    return SimpleNamespace(step=pilot.control, vary=pilot.sense, reset=pilot.rest)
