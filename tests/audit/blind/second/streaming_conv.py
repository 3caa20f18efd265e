from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class ConvConfig:
    channels: int = 4
    taps: int = 3
    ring: int = 8


class FrameRing:
    def __init__(self, config):
        self.frames = torch.zeros(config.ring, config.channels, device=DEVICE)
        self.head = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.back = torch.arange(config.taps, device=DEVICE)
        self.length = config.ring
        self.pushed = 0

    def push(self, frame):
        self.frames.index_copy_(0, self.head, frame[None])
        recent = self.frames[(self.head - self.back) % self.length]
        self.head.add_(1).remainder_(self.length)
        self.pushed += 1
        return recent

    def clear(self):
        self.frames.zero_()
        self.head.zero_()
        self.pushed = 0


class CausalConv:
    def __init__(self, config, phase):
        n = torch.arange(config.taps * config.channels, dtype=torch.float32)
        self.kernel = torch.sin(n + phase).view(config.taps, config.channels).to(DEVICE)
        self.ring = FrameRing(config)

    def __call__(self, frame):
        return torch.tanh((self.ring.push(frame) * self.kernel).sum(dim=0))


class Recognizer:
    def __init__(self, config):
        self.layers = [CausalConv(config, phase) for phase in range(2)]
        self.frame = torch.zeros(config.channels, device=DEVICE)
        self.time = 0

    def hear(self):
        self.time += 1
        n = torch.arange(self.frame.numel(), dtype=torch.float32)
        self.frame.copy_(torch.cos(n + 0.9 * self.time))

    def decode(self):
        x = self.frame
        for layer in self.layers:
            x = x + layer(x)
        return torch.log_softmax(x, dim=0)

    def restart(self):
        self.time = 0
        self.frame.zero_()
        for layer in self.layers:
            layer.ring.clear()


def make_engine():
    recognizer = Recognizer(ConvConfig())
    return SimpleNamespace(step=recognizer.decode, vary=recognizer.hear, reset=recognizer.restart)
