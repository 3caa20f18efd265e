"""A workspace made with torch.empty on first use (in warm-up), zeroed in every step before use."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Splitter:
    def __init__(self):
        torch.manual_seed(0)
        self.x = torch.randn(12, device=DEVICE)
        self._workspace = None

    @property
    def workspace(self):
        if self._workspace is None:
            self._workspace = torch.empty(3, 8, device=DEVICE)
        return self._workspace

    def step(self):
        ws = self.workspace
        ws.zero_()
        for i in range(3):
            ws[i, :4].add_(self.x[4 * i : 4 * i + 4])
        return ws.sum(0)


def make():
    s = Splitter()
    return {"step": s.step, "vary": lambda: s.x.add_(1), "reset": None}
