"""Streaming speech enhancement: frames are cut from a tape, filtered and overlap-added."""

from types import SimpleNamespace

import torch

WIN, HOP, TAPE = 32, 8, 96


class Enhancer:
    def __init__(self, seed=83):
        self.gen = torch.Generator().manual_seed(seed)
        self.hann = torch.hann_window(WIN)
        self.curve = torch.rand(WIN // 2 + 1, generator=self.gen)
        self.tape = 0.1 * torch.randn(TAPE, generator=self.gen)
        self.tail = torch.zeros(WIN)
        self.gain = torch.ones(())
        self.at = 0
        self.window = self.tape[:WIN]
        self.tick = 0

    def push(self, chunk):
        """Append a chunk; at the tape's end the last frame moves to its start."""
        if self.at + WIN + HOP > TAPE:
            self.tape[:WIN].copy_(self.tape[self.at : self.at + WIN].clone())
            self.at = 0
        self.tape[self.at + WIN : self.at + WIN + HOP].copy_(chunk)
        self.at += HOP
        self.window = self.tape[self.at : self.at + WIN]

    def vary(self):
        self.tick += 1
        self.gain.fill_(1.0 + 0.1 * (self.tick % 4))
        if self.tick % 3 == 0:  # chunks come late; until then the last is repeated
            self.push(torch.randn(HOP, generator=self.gen))

    def step(self):
        frame = self.window * self.hann
        spectrum = torch.fft.rfft(frame)
        clean = torch.fft.irfft(spectrum * self.curve, n=WIN) * self.gain
        self.tail.add_(clean)
        out = self.tail[:HOP].clone()
        self.tail.copy_(torch.cat([self.tail[HOP:], torch.zeros(HOP)]))
        return out


def make():
    enhancer = Enhancer()
    enhancer.vary()
    return SimpleNamespace(step=enhancer.step, vary=enhancer.vary)
