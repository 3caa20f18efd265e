"""The step advances a position that lives on the device: graphs replay that faithfully (state is on the
device only).
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Decoder:
    def __init__(self):
        torch.manual_seed(0)
        self.pos = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.cache = torch.zeros(64, 4, device=DEVICE)
        self.x = torch.randn(1, 4, device=DEVICE)

    def step(self):
        self.cache.index_copy_(0, self.pos % 64, self.x)
        self.pos.add_(1)
        return self.cache.sum(0)


def make():
    d = Decoder()

    def reset():
        d.pos.zero_()
        d.cache.zero_()

    return {"step": d.step, "vary": lambda: d.x.add_(1), "reset": reset}
