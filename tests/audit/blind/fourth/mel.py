"""Log-mel features of a microphone stream, with automatic gain and running normalisation."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Layout:
    rate: int = 8000
    size: int = 64
    hop: int = 32
    bands: int = 10


@lru_cache(maxsize=8)
def window(size):
    ramp = torch.arange(size, device=DEVICE) * (2 * math.pi / size)
    return 0.5 - 0.5 * torch.cos(ramp)


@lru_cache(maxsize=8)
def filters(layout):
    """Triangles that are evenly spaced in mel."""

    def mel(hertz):
        return 1127 * math.log1p(hertz / 700)

    top = mel(layout.rate / 2)
    corners = [700 * math.expm1(top * i / (layout.bands + 1) / 1127) for i in range(layout.bands + 2)]
    bins = torch.linspace(0, layout.rate / 2, layout.size // 2 + 1)
    rows = []
    for low, middle, high in zip(corners, corners[1:], corners[2:]):
        up, down = (bins - low) / (middle - low), (high - bins) / (high - middle)
        rows.append(torch.minimum(up, down).clamp_min(0))
    return torch.stack(rows).to(DEVICE)


class FrontEnd:
    def __init__(self, layout, seconds=0.1):
        self.layout = layout
        self.audio = torch.zeros(int(layout.rate * seconds), device=DEVICE)
        self.gain = torch.ones((), device=DEVICE)
        self.mean = None
        self.level, self.blocks = 1.0, 0

    def features(self):
        layout = self.layout
        frames = (self.audio * self.gain).unfold(0, layout.size, layout.hop) * window(layout.size)
        power = torch.fft.rfft(frames).abs().square()
        return torch.log(power @ filters(layout).T + 1e-4)

    def __call__(self):
        features = self.features()
        if self.mean is None:
            self.mean = torch.zeros(layout.bands, device=DEVICE)
        self.mean.lerp_(features.mean(0), 0.25)
        self.blocks += 1
        return features - self.mean

    def listen(self, audio):
        """Follow the loudness of what comes in, on the host, and correct for it."""
        self.level += 0.3 * (float(audio.abs().mean()) - self.level)
        self.gain.fill_(0.1 / max(self.level, 1e-3))
        self.audio.copy_(audio)


layout = Layout()
front = FrontEnd(layout)
microphone = torch.Generator().manual_seed(100)
loudness = 0.05


@torch.no_grad()
def step():
    return front()


def vary():
    global loudness
    loudness = loudness * 1.8 if loudness < 0.4 else 0.05
    front.listen(loudness * torch.randn(front.audio.shape, generator=microphone))


def reset():
    global loudness
    loudness, front.level, front.blocks = 0.05, 1.0, 0
    microphone.manual_seed(100)
    if front.mean is not None:
        front.mean.zero_()
