"""A forecast ensemble: members are replaced by fresh ones after each analysis."""

from types import SimpleNamespace

import torch
from torch import nn

STATE, MEMBERS = 12, 5


def new_member(gen):
    member = nn.Sequential(nn.Linear(STATE, STATE), nn.Tanh(), nn.Linear(STATE, STATE))
    with torch.no_grad():
        for p in member.parameters():
            p.copy_(torch.randn(p.shape, generator=gen) / STATE**0.5)
    return member.eval()


class Forecast:
    def __init__(self, seed=113):
        self.gen = torch.Generator().manual_seed(seed)
        self.members = [new_member(self.gen) for _ in range(MEMBERS)]
        self.state = torch.randn(STATE, generator=self.gen)
        self.observed = torch.zeros(STATE)
        self.cycle = 0

    def analyse(self):
        """Every third cycle the weakest member makes room."""
        worst = self.cycle % MEMBERS
        self.members[worst].load_state_dict(new_member(self.gen).state_dict())
        self.members = self.members[2:] + self.members[:2]  # the next analysis begins elsewhere

    def vary(self):
        self.cycle += 1
        if self.cycle % 3 == 0:
            self.analyse()
        self.observed.copy_(torch.randn(STATE, generator=self.gen))

    @torch.no_grad()
    def step(self):
        runs = torch.stack([member(self.state) for member in self.members])
        low, high = runs.amin(0), runs.amax(0)
        middle = runs.median(0).values
        self.state.mul_(0.5).add_(middle, alpha=0.3).add_(self.observed, alpha=0.2)
        return middle, high - low


def make():
    forecast = Forecast()
    forecast.vary()
    return SimpleNamespace(step=forecast.step, vary=forecast.vary)
