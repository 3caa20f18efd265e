"""Direction finding with a microphone array behind an automatic gain control.

The gain moves in steps of 6 dB, as a shift of the converter's samples would.
"""

import math

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class GainControl:
    """Host-side AGC: one 6 dB step per block, up or down."""

    def __init__(self, low=0.5, high=2.0):
        self.low, self.high = low, high
        self.shift = 0

    @property
    def gain(self):
        return 2.0**self.shift

    def react(self, level):
        if level * self.gain > self.high:
            self.shift -= 1
        elif level * self.gain < self.low:
            self.shift += 1


class Beamformer:
    def __init__(self, mics=6, angles=37, spacing=0.5):
        theta = torch.linspace(-math.pi / 2, math.pi / 2, angles, device=DEVICE)
        phase = 2 * math.pi * spacing * torch.sin(theta)[:, None]
        phase = phase * torch.arange(mics, device=DEVICE)
        self.steer_re = phase.cos() / mics**0.5
        self.steer_im = phase.sin() / mics**0.5
        self.agc = GainControl()

    def power(self, re, im):
        """Normalised spatial spectrum and principal direction of a block."""
        gain = self.agc.gain
        re, im = re * gain, im * gain
        out_re = re @ self.steer_re.T + im @ self.steer_im.T
        out_im = im @ self.steer_re.T - re @ self.steer_im.T
        spectrum = (out_re.square() + out_im.square()).mean(0)
        spectrum = spectrum / spectrum.sum()
        cov = re.T @ re + im.T @ im
        vec = F.normalize(cov[0], dim=0)
        for _ in range(8):
            vec = F.normalize(cov @ vec, dim=0)
        return spectrum, spectrum.argmax(), vec


class Scene:
    """Two plane waves plus noise."""

    def __init__(self, beam, samples=64, seed=141):
        self.beam = beam
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        mics = beam.steer_re.shape[1]
        self.re = torch.zeros(samples, mics, device=DEVICE)
        self.im = torch.zeros(samples, mics, device=DEVICE)
        self.block(0, 1.0)

    def block(self, n, loudness):
        self.re.normal_(generator=self.rng).mul_(0.2)
        self.im.normal_(generator=self.rng).mul_(0.2)
        for angle in (5 + 3 * n, 30 - 2 * n):
            source = torch.randn(self.re.shape[0], 1, device=DEVICE, generator=self.rng)
            self.re.add_(source * self.beam.steer_re[angle])
            self.im.add_(source * self.beam.steer_im[angle])
        self.re.mul_(loudness)
        self.im.mul_(loudness)


beam = Beamformer()
scene = Scene(beam)
_n = 0


def step():
    return beam.power(scene.re, scene.im)


def vary():
    global _n
    _n += 1
    loudness = (1.0, 4.0, 8.0, 8.0, 0.1, 0.1, 0.1)[_n % 7]
    scene.block(_n % 7, loudness)
    beam.agc.react(loudness)
