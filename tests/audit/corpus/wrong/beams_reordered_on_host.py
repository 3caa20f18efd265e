"""Beam search reorders its Python list of per-beam caches instead of their contents."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "frozen-host-value"]
SUBJECTS = ["beams", "caches", "states"]


class BeamState:
    def __init__(self, seed, dim=4):
        g = torch.Generator().manual_seed(seed)
        self.cache = torch.randn(6, dim, generator=g).to(DEVICE)
        self.last = torch.randn(dim, generator=g).to(DEVICE)


class BeamSearch:
    def __init__(self, width=3):
        self.beams = [BeamState(i) for i in range(width)]
        self.scores = torch.linspace(-1, 0, width, device=DEVICE)
        self.bigram = torch.randn(4, 8, generator=torch.Generator().manual_seed(9)).to(DEVICE)

    def extend(self, beam):
        attention = torch.softmax(beam.cache @ beam.last, dim=0)  # HERE
        return torch.log_softmax((attention @ beam.cache) @ self.bigram, dim=-1)  # HERE

    def step(self):
        rows = [self.extend(beam) for beam in self.beams]  # HERE
        total = torch.stack(rows) + self.scores.unsqueeze(1)
        return total.flatten().topk(3)

    def reorder(self, parents):
        self.beams = [self.beams[p] for p in parents]


def make():
    search = BeamSearch()

    def vary():
        search.scores.mul_(1.5)
        search.reorder([2, 0, 1])

    return {"step": search.step, "vary": vary, "reset": None}
