"""Latent upscaler: a few residual stages over two scratch planes of fixed size.

Stages read one plane and write the other, so the activations never need more than two.
"""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CH, SIDE = 4, 6


class Planes:
    """Two planes of the same shape; `read` holds the newest data."""

    def __init__(self, shape):
        self.read = torch.zeros(shape, device=DEVICE)
        self.write = torch.zeros(shape, device=DEVICE)

    def flip(self):
        self.read, self.write = self.write, self.read

    def load(self, data):
        self.read.copy_(data)


class Stage(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.conv = nn.Conv2d(CH, CH, 3, padding=1)
        self.gain = gain

    def forward(self, planes):
        x = planes.read
        planes.write.copy_(x + self.gain * F.silu(self.conv(x)))
        planes.flip()


def build_stages(spec):
    return nn.ModuleList(Stage(gain) for name, gain in spec if not name.startswith("#"))


STAGES = [
    ("coarse", 0.8),
    ("middle", 0.6),
    ("fine", 0.4),
    ("#sharpen", 0.2),
]


class Upscaler:
    def __init__(self):
        torch.manual_seed(6)
        self.stages = build_stages(STAGES).to(DEVICE).eval()
        self.planes = Planes((1, CH, SIDE, SIDE))
        self.gen = torch.Generator().manual_seed(17)
        self.submit()

    def submit(self):
        self.planes.load(torch.randn(1, CH, SIDE, SIDE, generator=self.gen))

    def run(self):
        for stage in self.stages:
            stage(self.planes)
        return F.interpolate(self.planes.read, scale_factor=2, mode="nearest").clamp(-3, 3)


upscaler = Upscaler()


@torch.no_grad()
def step():
    return upscaler.run()


def vary():
    upscaler.submit()
