"""A subclass decides its attention window by a mode of the base class, reached through super()."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["window", "mode", "long_context"]


class AttentionBase:
    long_context = False

    def __init__(self, size):
        self.size = size
        self.scores = torch.randn(size, size, device=DEVICE)

    def window(self):
        return self.size // 4

    def mask(self):
        i = torch.arange(self.size, device=DEVICE)
        distance = i[:, None] - i[None, :]
        return (distance < 0) | (distance > self.window())  # HERE

    def forward(self):
        return self.scores.masked_fill(self.mask(), float("-inf")).softmax(-1)  # HERE


class InterleavedAttention(AttentionBase):
    def __init__(self, size, index):
        super().__init__(size)
        self.index = index

    def window(self):
        narrow = super().window()
        if type(self).long_context and self.index % 2:  # HERE
            return 2 * narrow
        return narrow


def make():
    InterleavedAttention.long_context = False
    torch.manual_seed(0)
    layers = [InterleavedAttention(8, i) for i in range(2)]

    def step():
        return torch.linalg.multi_dot([layer.forward() for layer in layers] + [layers[0].scores])

    def vary():
        layers[0].scores.add_(0.1)
        InterleavedAttention.long_context = True

    return {"step": step, "vary": vary, "reset": None}
