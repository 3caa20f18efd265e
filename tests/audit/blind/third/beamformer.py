"""Delay-and-sum beamformer of a conference microphone array, steered at the active speaker."""

import functools
import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MICS, WINDOW, RATE = 6, 128, 16000
SPACING, SOUND = 0.05, 343.0


@functools.lru_cache(maxsize=32)
def window(length):
    return torch.hann_window(length, device=DEVICE)


@functools.lru_cache(maxsize=64)
def steering(bearing):
    """Weights of every bin and microphone; a degree is finer than the array resolves."""
    delays = torch.arange(MICS, device=DEVICE) * (SPACING * math.sin(math.radians(bearing)) / SOUND)
    bins = torch.arange(WINDOW // 2 + 1, device=DEVICE) * (RATE / WINDOW)
    phase = 2 * math.pi * bins[:, None] * delays[None, :]
    return torch.polar(torch.full_like(phase, 1 / MICS), phase)


class SpeakerTracker:
    """Smooths the bearings that the camera reports."""

    def __init__(self, alpha=0.6):
        self.alpha = alpha
        self.bearing = 0.0

    def report(self, seen):
        self.bearing += self.alpha * (seen - self.bearing)


class Beamformer:
    def __init__(self):
        self.tracker = SpeakerTracker()
        self.audio = torch.zeros(MICS, WINDOW, device=DEVICE)
        self.blocks = 0
        self.listen()

    def listen(self):
        self.blocks += 1
        t = torch.arange(WINDOW)[None, :] / RATE
        lag = torch.arange(MICS)[:, None] * 9e-5
        tone = 700.0 + 220.0 * self.blocks
        voice = torch.sin(2 * math.pi * tone * (t - lag)) + 0.5 * torch.sin(2 * math.pi * 2900.0 * (t + lag))
        self.audio.copy_(voice)

    def beam(self):
        spectrum = torch.fft.rfft(self.audio * window(WINDOW), dim=-1)
        weights = steering(round(self.tracker.bearing))
        focused = (spectrum.t() * weights).sum(1)
        signal = torch.fft.irfft(focused, n=WINDOW)
        return signal, focused.abs().square()


former = Beamformer()
bearings = [40, 42, -25, -30, 5, 60]


def step():
    return former.beam()


def vary():
    former.tracker.report(bearings[former.blocks % len(bearings)])
    former.listen()
