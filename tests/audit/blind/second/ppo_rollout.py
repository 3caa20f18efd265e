from dataclasses import dataclass
from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class RolloutConfig:
    num_envs: int = 4
    obs_dim: int = 6
    num_actions: int = 3
    horizon: int = 8


class RolloutBuffer:
    def __init__(self, config: RolloutConfig):
        shape = (config.horizon, config.num_envs)
        self.horizon = config.horizon
        self.position = 0
        self.values = torch.zeros(shape, device=DEVICE)
        self.log_probs = torch.zeros(shape, device=DEVICE)
        self.actions = torch.zeros(shape, dtype=torch.long, device=DEVICE)

    def add(self, action, log_prob, value):
        self.actions[self.position].copy_(action)
        self.log_probs[self.position].copy_(log_prob)
        self.values[self.position].copy_(value)
        self.position = (self.position + 1) % self.horizon


class Policy:
    def __init__(self, config: RolloutConfig):
        n = config.obs_dim * (config.num_actions + 1)
        weight = torch.sin(torch.arange(n, dtype=torch.float32) * 0.7)
        self.weight = weight.view(config.obs_dim, config.num_actions + 1).to(DEVICE)

    def __call__(self, obs):
        out = obs @ self.weight
        return torch.log_softmax(out[:, :-1], dim=-1), out[:, -1]


class Collector:
    def __init__(self, config: RolloutConfig):
        self.config = config
        self.policy = Policy(config)
        self.buffer = RolloutBuffer(config)
        self.obs = torch.ones(config.num_envs, config.obs_dim, device=DEVICE)
        self.clock = 0

    def observe(self):
        self.clock += 1
        grid = torch.arange(self.obs.numel(), dtype=torch.float32).view_as(self.obs)
        self.obs.copy_(torch.cos(0.31 * grid + self.clock))

    def restart(self):
        self.clock = self.buffer.position = 0
        self.obs.fill_(1)
        for recorded in (self.buffer.values, self.buffer.log_probs, self.buffer.actions):
            recorded.zero_()

    def collect(self):
        log_probs, value = self.policy(self.obs)
        best, action = log_probs.max(dim=-1)
        self.buffer.add(action, best, value)
        return action, value


def make_engine():
    collector = Collector(RolloutConfig())
    return SimpleNamespace(step=collector.collect, vary=collector.observe, reset=collector.restart)
