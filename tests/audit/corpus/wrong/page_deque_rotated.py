"""A sliding window of KV pages in a deque: the oldest page is recycled at the other end, the contents
stay.
"""

import collections

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "frozen-host-value"]
SUBJECTS = ["pages", "window"]


class PageWindow:
    def __init__(self, pages=3, rows=2, dim=4):
        self.pages = collections.deque(torch.randn(rows, dim, device=DEVICE) for _ in range(pages))

    def recycle(self, rows):
        self.pages.rotate(-1)
        self.pages[-1].copy_(rows)

    def __iter__(self):
        return iter(self.pages)  # HERE


class StreamingAttention:
    def __init__(self):
        torch.manual_seed(0)
        self.window = PageWindow()
        self.q = torch.randn(4, device=DEVICE)
        self.position_bias = torch.linspace(-1, 1, 6, device=DEVICE)

    def forward(self):
        keys = torch.cat([page * 1.0 for page in self.window])  # HERE
        weights = torch.softmax(keys @ self.q + self.position_bias, dim=0)
        return weights @ keys


def make():
    layer = StreamingAttention()

    def vary():
        layer.q.mul_(0.9)
        layer.window.recycle(torch.ones(2, 4, device=DEVICE) * 0.3)

    return {"step": layer.forward, "vary": vary, "reset": None}
