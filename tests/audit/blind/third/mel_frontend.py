"""Mel features of a speech recogniser whose callers come with several sampling rates."""

import functools
import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FFT, HOP, BANDS, SAMPLES = 64, 32, 12, 512


@functools.lru_cache(maxsize=None)
def window(n_fft):
    return torch.hann_window(n_fft, device=DEVICE)


@functools.lru_cache(maxsize=8)
def mel_bank(rate):
    mel = lambda hz: 2595 * math.log10(1 + hz / 700)  # noqa: E731
    top = mel(rate / 2)
    points = [700 * (10 ** (top * i / (BANDS + 1) / 2595) - 1) for i in range(BANDS + 2)]
    hertz = torch.linspace(0, rate / 2, FFT // 2 + 1)
    bank = []
    for low, mid, high in zip(points, points[1:], points[2:]):
        rising, falling = (hertz - low) / (mid - low), (high - hertz) / (high - mid)
        bank.append(torch.minimum(rising, falling).clamp(min=0))
    return torch.stack(bank).to(DEVICE)


class Frontend:
    def __init__(self, rate=16000):
        self._rate = None
        self._loaded = None
        self.bank = torch.zeros(BANDS, FFT // 2 + 1, device=DEVICE)
        self.audio = torch.zeros(SAMPLES, device=DEVICE)
        self.gain = torch.ones((), device=DEVICE)
        self.rate = rate

    @property
    def rate(self):
        return self._rate

    @rate.setter
    def rate(self, value):
        self._rate = value
        self.prepare()

    def prepare(self):
        if self._loaded != self._rate:
            self.bank.copy_(mel_bank(self._rate))
            self._loaded = self._rate

    def features(self):
        self.prepare()
        frames = self.audio.unfold(0, FFT, HOP) * window(FFT)
        power = torch.fft.rfft(frames, dim=-1).abs().square() * self.gain
        mels = torch.log1p(power @ self.bank.t())
        return mels - mels.mean(dim=0, keepdim=True), mels.amax()


class Call:
    rates = [16000, 8000, 8000, 22050, 16000, 44100]

    def __init__(self):
        self.frontend = Frontend()
        self.number = 0
        self.dial()

    def dial(self):
        rate = self.rates[self.number % len(self.rates)]
        self.number += 1
        t = torch.arange(SAMPLES) / rate
        self.frontend.rate = rate
        self.frontend.audio.copy_(
            torch.sin(2 * math.pi * 300 * self.number * t) + torch.sin(2 * math.pi * 2500 * t)
        )
        self.frontend.gain.fill_(0.5 + 0.1 * self.number)


call = Call()


def step():
    return call.frontend.features()


def vary():
    call.dial()
