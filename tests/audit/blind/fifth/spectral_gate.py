"""Noise gate on a block of audio: short-time Fourier transform, soft gate, overlap-add.

Windows and their overlap sums are kept by what they depend on. Previews ask for other sizes in between, and
share the same shelf.
"""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTH = 256


class Shelf:
    """Things made on demand and kept by their key."""

    def __init__(self):
        self._things, self.asked = {}, 0

    def get(self, make, *key):
        self.asked += 1
        key = (make.__name__, *key)
        if key not in self._things:
            self._things[key] = make(*key[1:])
        return self._things[key]

    def __len__(self):
        return len(self._things)


def hann(size):
    turns = torch.arange(size, device=DEVICE) * (2.0 * math.pi / size)
    return 0.5 - 0.5 * torch.cos(turns)


def overlap(size, hop, length):
    window = hann(size) ** 2
    total = torch.zeros(length, device=DEVICE)
    for start in range(0, length - size + 1, hop):
        total[start : start + size] += window
    return total.clamp_min(1e-3)


class Gate:
    def __init__(self, size, hop, shelf):
        self.size, self.hop, self.shelf = size, hop, shelf
        self.threshold = torch.full((), 2.0, device=DEVICE)

    def __call__(self, audio):
        window = self.shelf.get(hann, self.size)
        frames = audio.unfold(0, self.size, self.hop) * window
        spectrum = torch.fft.rfft(frames)
        level = spectrum.abs()
        kept = spectrum * torch.sigmoid(4.0 * (level - self.threshold))
        pieces = torch.fft.irfft(kept, n=self.size) * window
        out = torch.zeros_like(audio)
        for i, piece in enumerate(pieces.unbind(0)):
            out[i * self.hop : i * self.hop + self.size].add_(piece)
        return out / self.shelf.get(overlap, self.size, self.hop, len(audio)), level.mean(0)


shelf = Shelf()
gate = Gate(64, 32, shelf)
preview_sizes = iter([16, 32, 128, 48, 96] * 8)
gen = torch.Generator().manual_seed(27)
audio = torch.zeros(LENGTH, device=DEVICE)


def load():
    tone = torch.sin(torch.arange(LENGTH) * (0.1 + 0.3 * torch.rand((), generator=gen)))
    audio.copy_(tone + 0.3 * torch.randn(LENGTH, generator=gen))


load()


def step():
    cleaned, level = gate(audio)
    return {"cleaned": cleaned, "level": level}


def vary():
    load()
    size = next(preview_sizes)
    preview, _ = Gate(size, size // 2, shelf)(audio)
    gate.threshold.fill_(1.0 + 0.5 * float(preview.abs().mean()) + 0.02 * len(shelf))
