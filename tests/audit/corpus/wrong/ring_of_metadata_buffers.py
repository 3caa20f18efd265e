"""Two sets of metadata buffers alternate so that the host can fill one while the device reads the other."""

import itertools
from dataclasses import dataclass

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "frozen-host-value"]
SUBJECTS = ["slot", "ring", "current", "lens", "ids"]


@dataclass
class Slot:
    ids: torch.Tensor
    lens: torch.Tensor

    @classmethod
    def new(cls, n):
        return cls(*(torch.zeros(n, dtype=torch.long, device=DEVICE) for _ in range(2)))


class OverlapScheduler:
    def __init__(self, n=4):
        self.ring = itertools.cycle([Slot.new(n), Slot.new(n)])
        self.batch = 0
        self.prepare()

    def prepare(self):
        self.batch += 1
        self.current = next(self.ring)
        self.current.ids.copy_(torch.arange(4) * self.batch % 9)
        self.current.lens.copy_(torch.arange(1, 5) + self.batch)


class Model:
    def __init__(self):
        torch.manual_seed(0)
        self.scheduler = OverlapScheduler()
        self.embed = torch.randn(9, 5, device=DEVICE)

    def forward(self):
        slot = self.scheduler.current  # HERE
        h = self.embed[slot.ids]  # HERE
        return torch.nn.functional.rms_norm(h * slot.lens.unsqueeze(-1), (5,)) + h  # HERE


def make():
    model = Model()
    return {"step": model.forward, "vary": model.scheduler.prepare, "reset": None}
