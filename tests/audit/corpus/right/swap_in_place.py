"""Training weights and their average trade places by copies, as before an evaluation; a host flag tells
which is which.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class WeightSwapper:
    def __init__(self, model):
        self.live = list(model.parameters())
        self.average = [p.detach().clone() * 0.5 for p in self.live]
        self.swapped = False

    @torch.no_grad()
    def swap(self):
        for live, average in zip(self.live, self.average):
            kept = live.clone()
            live.copy_(average)
            average.copy_(kept)
        self.swapped = not self.swapped

    def title(self):
        return "average" if self.swapped else "live"


class Evaluator:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 3)).to(DEVICE).eval()
        self.swapper = WeightSwapper(self.model)
        self.x = torch.randn(6, 4, device=DEVICE)
        self.results = {}

    @torch.inference_mode()
    def step(self):
        logits = self.model(self.x)
        self.results[self.swapper.title()] = logits.shape
        return logits.log_softmax(-1).mean(0)


def make():
    evaluator = Evaluator()

    def vary():
        evaluator.x.cos_()
        evaluator.swapper.swap()

    return {"step": evaluator.step, "vary": vary, "reset": None}
