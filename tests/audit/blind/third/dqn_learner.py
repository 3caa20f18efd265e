"""A DQN learner for a pendulum with discrete torques: one gradient step per batch of transitions."""

import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, OBS, ACTIONS = 10, 3, 5


def q_network():
    return nn.Sequential(nn.Linear(OBS, 20), nn.Tanh(), nn.Linear(20, ACTIONS)).to(DEVICE)


@dataclass
class Transitions:
    obs: torch.Tensor = field(default_factory=lambda: torch.zeros(BATCH, OBS, device=DEVICE))
    after: torch.Tensor = field(default_factory=lambda: torch.zeros(BATCH, OBS, device=DEVICE))
    action: torch.Tensor = field(
        default_factory=lambda: torch.zeros(BATCH, 1, dtype=torch.long, device=DEVICE)
    )
    reward: torch.Tensor = field(default_factory=lambda: torch.zeros(BATCH, device=DEVICE))

    def sample(self, seed):
        g = torch.Generator().manual_seed(seed)
        self.obs.copy_(torch.randn(BATCH, OBS, generator=g))
        self.after.copy_(torch.randn(BATCH, OBS, generator=g))
        self.action.copy_(torch.randint(0, ACTIONS, (BATCH, 1), generator=g))
        self.reward.copy_(torch.randn(BATCH, generator=g))


class Learner:
    sync_every = 4

    def __init__(self, gamma=0.97, rate=0.1):
        torch.manual_seed(3)
        self.online, self.target = q_network(), q_network().requires_grad_(False)
        self.initial = copy.deepcopy([self.online.state_dict(), self.target.state_dict()])
        self.batch = Transitions()
        self.batch.sample(0)
        self.gamma, self.rate = gamma, rate
        self.updates = 1
        for p in self.online.parameters():
            p.grad = torch.zeros_like(p)

    @torch.no_grad()
    def refresh_target(self):
        for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
            slow.copy_(fast)

    def update(self):
        if self.updates % self.sync_every == 0:
            self.refresh_target()
        best = self.target(self.batch.after).amax(1)
        wanted = self.batch.reward + self.gamma * best
        chosen = self.online(self.batch.obs).gather(1, self.batch.action).squeeze(1)
        loss = F.smooth_l1_loss(chosen, wanted)
        for p in self.online.parameters():
            p.grad.zero_()
        loss.backward()
        with torch.no_grad():
            for p in self.online.parameters():
                p.sub_(p.grad, alpha=self.rate)
        return (wanted - chosen).detach(), loss.detach()


learner = Learner()


def step():
    return learner.update()


def vary():
    learner.updates += 1
    learner.batch.sample(learner.updates)


def reset():
    online, target = learner.initial
    learner.online.load_state_dict(online)
    learner.target.load_state_dict(target)
