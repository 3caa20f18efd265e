"""The copy to the device is in the graph, but each step stages its ids in a new host tensor."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["staging"]


def pinned(values):
    return graphs.host(torch.tensor(values), pinned=True)


class Inputs:
    def __init__(self):
        torch.manual_seed(0)
        self.staging = pinned([1, 2, 3])
        self.ids = torch.zeros(3, dtype=torch.long, device=DEVICE)
        self.table = torch.randn(64, 4, device=DEVICE)
        self.count = 0

    def step(self):
        self.ids.copy_(self.staging, non_blocking=True)  # HERE
        return self.table[self.ids]

    def next(self):
        self.count += 1
        c = self.count % 20
        self.staging = pinned([c + 4, c + 5, c + 6])


def make():
    i = Inputs()
    return {"step": i.step, "vary": i.next, "reset": None}
