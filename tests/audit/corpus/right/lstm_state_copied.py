"""An LSTM in eval advances its state on the device by copy_; reset clears it."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.lstm = nn.LSTM(3, 4).to(DEVICE).eval()
        self.x = torch.randn(2, 1, 3, device=DEVICE)
        self.h, self.c = torch.zeros(1, 1, 4, device=DEVICE), torch.zeros(1, 1, 4, device=DEVICE)

    @torch.no_grad()
    def step(self):
        out, (h, c) = self.lstm(self.x, (self.h, self.c))
        self.h.copy_(h)
        self.c.copy_(c)
        return out


def make():
    decoder = Decoder()
    return {
        "step": decoder.step,
        "vary": lambda: decoder.x.mul_(1.2),
        "reset": lambda: (decoder.h.zero_(), decoder.c.zero_()),
    }
