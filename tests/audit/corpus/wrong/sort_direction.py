"""The direction of a sort is a host flag: the same op, the other way round."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["descending", "order"]


class Ranking:
    def __init__(self):
        torch.manual_seed(0)
        self.scores = torch.randn(3, 6, device=DEVICE)
        self.descending = True

    def __call__(self):
        values, _ = torch.sort(self.scores, dim=-1, descending=self.descending)  # HERE
        return values.cumsum(-1)


def make():
    ranking = Ranking()

    def vary():
        ranking.descending = not ranking.descending

    return {"step": ranking, "vary": vary, "reset": None}
