"""A sliding window over a ring buffer: as_strided at an offset that the host advances."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["head"]


class SlidingKV:
    """The buffer is written twice, one ring length apart, so that any window is contiguous."""

    def __init__(self, ring=6, dim=3):
        self.ring, self.dim = ring, dim
        self.memory = torch.randn(2 * ring, dim, device=DEVICE)
        self.head = 0

    def window(self, width):
        offset = self.head * self.dim  # HERE
        return self.memory.as_strided((width, self.dim), (self.dim, 1), offset)  # HERE

    def append(self, row):
        at = (self.head + self.ring - 1) % self.ring
        self.memory[at].copy_(row)
        self.memory[at + self.ring].copy_(row)
        self.head = (self.head + 1) % self.ring


class ConvMixer:
    def __init__(self):
        torch.manual_seed(0)
        self.kv = SlidingKV()
        self.kernel = torch.randn(4, 3, device=DEVICE)
        self.gate = torch.randn(3, device=DEVICE)

    def step(self):
        window = self.kv.window(4)  # HERE
        mixed = torch.einsum("td,td->d", window, self.kernel)  # HERE
        return mixed * torch.sigmoid(self.gate)


def make():
    mixer = ConvMixer()
    return {
        "step": mixer.step,
        "vary": lambda: mixer.kv.append(mixer.gate * 2),
        "reset": None,
    }
