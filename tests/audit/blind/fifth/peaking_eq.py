"""A parametric equaliser: peaking biquads in series over short blocks of stereo audio.

Coefficients live in buffers and follow the knobs of the mixing desk: before a band runs, a hook retunes it.
"""

import math
from types import SimpleNamespace

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RATE, BLOCK, CHANNELS = 48000.0, 12, 2


def retune(band, args):
    """Coefficients of the audio cookbook's peaking filter, written into the band's buffers."""
    knob = band.knob
    amplitude = 10.0 ** (knob.decibels / 40.0)
    omega = 2.0 * math.pi * knob.hertz / RATE
    alpha = math.sin(omega) / (2.0 * knob.quality)
    a0 = 1.0 + alpha / amplitude
    taps = (1.0 + alpha * amplitude, -2.0 * math.cos(omega), 1.0 - alpha * amplitude)
    backs = (-2.0 * math.cos(omega), 1.0 - alpha / amplitude)
    for place, value in zip(band.feed_forward.unbind(), taps):
        place.fill_(value / a0)
    for place, value in zip(band.feed_back.unbind(), backs):
        place.fill_(value / a0)


class Band(nn.Module):
    def __init__(self, hertz, decibels, quality):
        super().__init__()
        self.knob = SimpleNamespace(hertz=hertz, decibels=decibels, quality=quality)
        self.register_buffer("feed_forward", torch.zeros(3))
        self.register_buffer("feed_back", torch.zeros(2))
        self.register_buffer("memory", torch.zeros(2, CHANNELS))
        self.register_forward_pre_hook(retune)

    def forward(self, block):
        b0, b1, b2 = self.feed_forward.unbind()
        a1, a2 = self.feed_back.unbind()
        z1, z2 = self.memory.clone().unbind()
        out = []
        for x in block.unbind(0):
            y = b0 * x + z1
            z1 = b1 * x - a1 * y + z2
            z2 = b2 * x - a2 * y
            out.append(y)
        self.memory.copy_(torch.stack([z1, z2]))
        return torch.stack(out)


class Desk:
    def __init__(self, *bands):
        self.chain = nn.Sequential(*bands).to(DEVICE)
        self.block = torch.zeros(BLOCK, CHANNELS, device=DEVICE)

    def turn(self, index, **settings):
        vars(self.chain[index].knob).update(settings)


gen = torch.Generator().manual_seed(14)
desk = Desk(Band(400.0, 6.0, 0.8), Band(2500.0, -4.0, 1.2), Band(9000.0, 3.0, 0.7))
moves = iter([(0, 12.0), (1, -12.0), (2, 9.0), (0, -9.0), (1, 8.0)] * 8)
desk.block.copy_(torch.randn(BLOCK, CHANNELS, generator=gen))


def step():
    return desk.chain(desk.block)


def vary():
    index, decibels = next(moves)
    desk.turn(index, decibels=decibels)
    desk.block.copy_(torch.randn(BLOCK, CHANNELS, generator=gen))


def reset():
    for band in desk.chain:
        band.memory.zero_()
