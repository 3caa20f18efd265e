"""RL rollouts: epsilon-greedy actors over a batch of environments, one config object."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch

ENVS, OBS, ACTIONS = 48, 6, 5


@dataclass(frozen=True)
class RolloutConfig:
    eps: float = 0.8
    gamma: float = 0.97
    version: int = 0


class Rollout:
    def __init__(self, seed=97):
        self.gen = torch.Generator().manual_seed(seed)
        self.cfg = RolloutConfig()
        self.eps = torch.tensor(self.cfg.eps)
        self.q = torch.randn(OBS, ACTIONS, generator=self.gen)
        self.dynamics = torch.randn(ACTIONS, OBS, generator=self.gen) / 4
        self.obs = torch.randn(ENVS, OBS, generator=self.gen)
        self.noise = torch.zeros(ENVS)
        self.explore = torch.zeros(ENVS, dtype=torch.long)
        self.returns = torch.zeros(ENVS)
        self.tick = 0

    def vary(self):
        self.tick += 1
        if self.tick % 4 == 0:  # an epoch ends
            self.cfg = replace(self.cfg, eps=self.cfg.eps * 0.6, version=self.cfg.version + 1)
        self.eps.fill_(self.cfg.eps)
        self.noise.copy_(torch.rand(ENVS, generator=self.gen))
        self.explore.copy_(torch.randint(0, ACTIONS, (ENVS,), generator=self.gen))

    def step(self):
        cfg = self.cfg
        greedy = (self.obs @ self.q).argmax(-1)
        action = torch.where(self.noise < cfg.eps, self.explore, greedy)
        self.obs.mul_(0.9).add_(self.dynamics[action])
        reward = -self.obs.square().mean(-1)
        self.returns.mul_(cfg.gamma).add_(reward)
        return action, self.returns.clone()


def make():
    rollout = Rollout()
    rollout.vary()
    return SimpleNamespace(step=rollout.step, vary=rollout.vary)
