"""An enum mode changes, goes through another method, and launches the same work."""

import enum

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Phase(enum.Enum):
    WARM = "warm"
    HOT = "hot"


class Model:
    def __init__(self):
        torch.manual_seed(0)
        self.phase = Phase.WARM
        self.x = torch.randn(6, device=DEVICE)

    def _warm(self):
        return torch.exp(-self.x)

    def _hot(self):
        shifted = self.x
        return torch.exp(-shifted)

    def step(self):
        return {Phase.WARM: self._warm, Phase.HOT: self._hot}[self.phase]()


def make():
    m = Model()

    def vary():
        m.phase = Phase.HOT
        m.x.add_(0.1)

    return {"step": m.step, "vary": vary, "reset": None}
