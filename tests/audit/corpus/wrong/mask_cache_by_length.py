"""Causal masks are cached by Python length: the graph keeps the mask of the captured length."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address", "lost-kernel"]
SUBJECTS = ["seq_len", "mask"]


class Masks:
    def __init__(self, size):
        self.size = size
        self.by_length = {}

    def get(self, n):
        if n not in self.by_length:
            i = torch.arange(self.size, device=DEVICE)
            self.by_length[n] = (i < n)[None, :] & (i[None, :] <= i[:, None])  # HERE
        return self.by_length[n]


class Request:
    seq_len = 3


def make():
    torch.manual_seed(0)
    masks, request = Masks(8), Request()
    scores = torch.randn(8, 8, device=DEVICE)

    def step():
        mask = masks.get(request.seq_len)  # HERE
        return torch.where(mask, scores, torch.zeros_like(scores))

    def vary():
        request.seq_len = request.seq_len % 7 + 1
        scores.add_(0.1)

    return {"step": step, "vary": vary, "reset": None}
