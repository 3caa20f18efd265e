"""Restoration of old film by a short diffusion sampler that starts from its features of the last frame."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE, CHANNELS = 12, 6


class Tap:
    """Keeps what a module has put out last, for whoever asks."""

    def __init__(self, module, example):
        self.latest = torch.zeros(example, device=DEVICE)
        module.register_forward_hook(self)

    def __call__(self, module, inputs, output):
        self.latest = output


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(2, outputs)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = Block(2, CHANNELS)
        self.middle = Block(2 * CHANNELS, CHANNELS)
        self.leave = nn.Conv2d(CHANNELS, 1, 3, padding=1)
        gen = torch.Generator().manual_seed(150)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.2)

    def forward(self, x, damaged, memory, sigma):
        entered = self.enter(torch.cat([x / (1 + sigma), damaged], dim=1))
        return self.leave(self.middle(torch.cat([entered, memory], dim=1)))


def sigmas(steps, high=2.0, low=0.05, bend=3.0):
    """Noise levels from high to low, and nothing in the end."""
    for i in range(steps):
        yield (high ** (1 / bend) + i / (steps - 1) * (low ** (1 / bend) - high ** (1 / bend))) ** bend
    yield 0.0


shape = (1, CHANNELS, SIDE, SIDE)
denoiser = Denoiser().to(DEVICE).eval()
tap = Tap(denoiser.middle, shape)
damaged = torch.zeros(1, 1, SIDE, SIDE, device=DEVICE)
noise = torch.zeros(1, 1, SIDE, SIDE, device=DEVICE)
memory = torch.zeros(shape, device=DEVICE)
reel = torch.Generator().manual_seed(151)


@torch.no_grad()
def step():
    levels = sigmas(4)
    sigma = next(levels)
    x = damaged + sigma * noise
    for following in levels:
        clean = denoiser(x, damaged, memory, sigma)
        x = clean + following / sigma * (x - clean)
        sigma = following
    return x


def vary():
    memory.lerp_(tap.latest, 0.7)
    damaged.copy_(torch.rand(damaged.shape, generator=reel))
    noise.copy_(torch.randn(noise.shape, generator=reel))


def reset():
    tap.latest.zero_()
    memory.zero_()
