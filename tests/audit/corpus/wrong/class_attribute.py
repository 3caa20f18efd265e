"""A class attribute, shared by all instances, sets the attention window."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["window"]


class SlidingWindow:
    window = 2

    def __init__(self):
        torch.manual_seed(0)
        self.scores = torch.randn(8, 8, device=DEVICE)

    def forward(self):
        band = torch.tril(self.scores)
        return torch.triu(band, diagonal=-self.window)  # HERE


def make():
    SlidingWindow.window = 2
    layer = SlidingWindow()

    def vary():
        SlidingWindow.window = SlidingWindow.window % 6 + 1
        layer.scores.add_(0.1)

    return {"step": layer.forward, "vary": vary, "reset": None}
