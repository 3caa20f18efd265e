import functools
from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class FrontendConfig:
    frame: int = 32
    bands: int = 6


@functools.lru_cache(maxsize=2)
def window(frame):
    k = torch.arange(frame, dtype=torch.float32, device=DEVICE)
    return 0.5 - 0.5 * torch.cos(2 * torch.pi * k / frame)


def bands(frame, count):
    lines = frame // 2 + 1
    k = torch.arange(lines, dtype=torch.float32, device=DEVICE)
    centers = torch.linspace(0, lines - 1, count, device=DEVICE)
    return torch.relu(1 - (k[:, None] - centers[None]).abs() / 3)


class Frontend:
    def __init__(self, config):
        self.config = config
        self.filters = bands(config.frame, config.bands)
        self.audio = torch.zeros(2, config.frame, device=DEVICE)

    def features(self):
        framed = self.audio * window(self.config.frame)
        k = torch.arange(self.filters.shape[0], device=DEVICE, dtype=torch.float32)
        n = torch.arange(self.config.frame, device=DEVICE, dtype=torch.float32)
        angle = 2 * torch.pi / self.config.frame * n[:, None] * k[None]
        power = (framed @ torch.cos(angle)).square() + (framed @ torch.sin(angle)).square()
        return torch.log1p(power @ self.filters)


class LevelMeter:
    def __init__(self):
        self.history = []

    def measure(self, frame):
        tone = torch.cos(torch.arange(frame, dtype=torch.float32, device=DEVICE))
        self.history.append((window(frame) * tone).square())


frontend = Frontend(FrontendConfig())
meter = LevelMeter()
chunks = iter(range(1, 10_000))


def step():
    return frontend.features()


def vary():
    k = next(chunks)
    n = torch.arange(frontend.audio.numel(), dtype=torch.float32).view_as(frontend.audio)
    frontend.audio.copy_(torch.sin(n * 0.2 * k))
    for frame in (29, 30, 31):
        meter.measure(frame)


def reset():
    window.cache_clear()
    meter.history.clear()
