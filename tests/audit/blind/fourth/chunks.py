"""Temporal ensembling of action chunks on a small manipulator: overlapping plans are averaged."""

from collections import deque

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
JOINTS, HORIZON, OBSERVED = 5, 8, 12


class Policy(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.look = nn.Linear(OBSERVED, 24)
        self.recall = nn.Linear(JOINTS * HORIZON, 24, bias=False)
        self.act = nn.Linear(24, JOINTS * HORIZON)
        gen = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.25)

    def forward(self, observed, carried):
        hidden = torch.tanh(self.look(observed) + self.recall(carried.flatten()))
        return self.act(hidden).view(HORIZON, JOINTS)


class Arm:
    """Kinematics with joint limits; the plan is what the servos follow."""

    def __init__(self):
        self.limits = torch.linspace(0.8, 1.6, JOINTS, device=DEVICE)
        self.observed = torch.zeros(OBSERVED, device=DEVICE)
        self.carried = torch.zeros(HORIZON, JOINTS, device=DEVICE)
        self.plan = torch.zeros(HORIZON, JOINTS, device=DEVICE)

    def clip(self, plan):
        return self.limits * torch.tanh(plan / self.limits)


class Ensemble:
    """The last few plans, each moved on by its age and weighted down with it."""

    def __init__(self, size=3, fade=0.6):
        self.recent = deque(maxlen=size)
        self.fade = fade

    def note(self, plan):
        self.recent.appendleft(plan)

    def blend(self):
        total, weight = torch.zeros(HORIZON, JOINTS, device=DEVICE), 0.0
        for age, plan in enumerate(self.recent, start=1):
            moved = torch.cat([plan[age:], plan[-1:].expand(age, -1)])
            total += self.fade**age * moved
            weight += self.fade**age
        return total / weight


arm = Arm()
policy = Policy(50).to(DEVICE).eval()
ensemble = Ensemble()
camera = torch.Generator().manual_seed(51)


@torch.no_grad()
def step():
    arm.plan = arm.clip(policy(arm.observed, arm.carried))
    return arm.plan


def vary():
    ensemble.note(arm.plan)
    arm.carried.copy_(ensemble.blend())
    arm.observed.copy_(torch.randn(OBSERVED, generator=camera))


def reset():
    arm.plan.zero_()
    arm.carried.zero_()
    ensemble.recent.clear()
