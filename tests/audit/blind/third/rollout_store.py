"""Writes one tick of parallel environments into a ring buffer and estimates the discounted returns."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENVS, OBS, LENGTH = 5, 4, 8


class Ring:
    def __init__(self):
        self.obs = torch.zeros(LENGTH, ENVS, OBS, device=DEVICE)
        self.rewards = torch.zeros(LENGTH, ENVS, device=DEVICE)
        self.values = torch.zeros(LENGTH, ENVS, device=DEVICE)
        self.cursor = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.ages = torch.arange(LENGTH, device=DEVICE)
        self.written = 0

    def __len__(self):
        return min(self.written, LENGTH)

    def put(self, obs, reward, value):
        position = self.cursor % LENGTH
        self.obs.index_copy_(0, position, obs.unsqueeze(0))
        self.rewards.index_copy_(0, position, reward.unsqueeze(0))
        self.values.index_copy_(0, position, value.unsqueeze(0))
        self.cursor.add_(1)
        self.written += 1

    def discounted(self, gamma):
        """Sum over what is stored, the latest entry first."""
        age = (self.cursor - 1 - self.ages) % LENGTH
        stored = self.ages < self.cursor
        weights = torch.where(stored, gamma ** age.float(), 0.0)
        return (weights[:, None] * self.rewards).sum(0)

    def clear(self):
        for tensor in (self.obs, self.rewards, self.values, self.cursor):
            tensor.zero_()
        self.written = 0


class Collector:
    def __init__(self):
        torch.manual_seed(6)
        self.critic = (
            nn.Sequential(nn.Linear(OBS, 10), nn.Tanh(), nn.Linear(10, 1)).to(DEVICE).requires_grad_(False)
        )
        self.observation = torch.zeros(ENVS, OBS, device=DEVICE)
        self.reward = torch.zeros(ENVS, device=DEVICE)
        self.store = Ring()
        self.progress = "0/0"

    def tick(self):
        value = self.critic(self.observation).squeeze(-1)
        self.store.put(self.observation, self.reward, value)
        self.progress = f"{len(self.store)}/{LENGTH}"
        return value, self.store.discounted(0.9)


class Simulator:
    def __init__(self, collector):
        self.collector, self.time = collector, 0

    def simulate(self):
        self.time += 1
        cells = torch.arange(ENVS * OBS).view(ENVS, OBS)
        self.collector.observation.copy_(torch.sin(cells * 0.5 + self.time))
        self.collector.reward.copy_(torch.cos(torch.arange(ENVS) * 1.0 + self.time))


collector = Collector()
simulator = Simulator(collector)
step = collector.tick
vary = simulator.simulate
reset = collector.store.clear
