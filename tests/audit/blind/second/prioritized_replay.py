from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class ReplayConfig:
    capacity: int = 6
    obs: int = 4
    insert: int = 2
    sample: int = 3


class ReplayBuffer:
    def __init__(self, config):
        self.config = config
        self.obs = torch.zeros(config.capacity, config.obs, device=DEVICE)
        self.priority = torch.zeros(config.capacity, device=DEVICE)
        self.cursor = torch.arange(config.insert, device=DEVICE)
        self.size = 0

    def insert(self, obs, priority):
        self.obs.index_copy_(0, self.cursor, obs)
        self.priority.index_copy_(0, self.cursor, priority)
        self.cursor.add_(self.config.insert).remainder_(self.config.capacity)
        self.size = min(self.size + self.config.insert, self.config.capacity)

    def best(self):
        priority, rows = self.priority.topk(self.config.sample)
        return self.obs[rows], priority

    def __repr__(self):
        return f"ReplayBuffer({self.size}/{self.config.capacity})"


class Learner:
    def __init__(self, config):
        self.buffer = ReplayBuffer(config)
        self.weight = torch.sin(torch.arange(config.obs, dtype=torch.float32)).to(DEVICE)
        self.incoming = torch.ones(config.insert, config.obs, device=DEVICE)
        self.log = []

    def learn(self):
        error = (self.incoming @ self.weight).abs() + 0.01 * self.incoming[:, 0].abs()
        self.buffer.insert(self.incoming, error)
        obs, priority = self.buffer.best()
        weights = priority / priority.sum()
        self.log.append(repr(self.buffer))
        return (obs * weights[:, None]).sum(dim=0), priority


learner = Learner(ReplayConfig())
clock = iter(range(1, 10_000))


def step():
    return learner.learn()


def vary():
    k = next(clock)
    n = torch.arange(learner.incoming.numel(), dtype=torch.float32).view_as(learner.incoming)
    learner.incoming.copy_(torch.cos(0.7 * n * k) + 0.1 * n)


def reset():
    global clock
    clock = iter(range(1, 10_000))
    buffer, config = learner.buffer, learner.buffer.config
    buffer.obs.zero_()
    buffer.priority.zero_()
    buffer.cursor.copy_(torch.arange(config.insert))
    buffer.size = 0
    learner.incoming.fill_(1)
    learner.log.clear()
