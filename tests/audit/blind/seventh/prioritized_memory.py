"""Prioritised episodic memory of a value-based agent.

Reads are a softmax-weighted average over the stored entries, with keys and
priorities; writes happen between reads as episodes finish.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class EpisodicMemory:
    """Fixed storage, filled from the front."""

    def __init__(self, capacity, key_dim):
        self.keys = torch.zeros(capacity, key_dim, device=DEVICE)
        self.values = torch.zeros(capacity, device=DEVICE)
        self.priority = torch.zeros(capacity, device=DEVICE)
        self.capacity = capacity
        self.size = 0

    def __len__(self):
        return self.size

    def append(self, keys, values):
        n = min(keys.shape[0], self.capacity - self.size)
        rows = slice(self.size, self.size + n)
        self.keys[rows].copy_(keys[:n])
        self.values[rows].copy_(values[:n])
        self.priority[rows].copy_(values[:n].abs())
        self.size += n

    def rows(self):
        n = len(self)
        return self.keys[:n], self.values[:n], self.priority[:n]


class Agent:
    def __init__(self, seed=71, key_dim=8, actions=5):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.project = self._randn(12, key_dim) * 0.4
        self.offset = self._randn(actions, key_dim)
        self.memory = EpisodicMemory(capacity=64, key_dim=key_dim)
        self.obs = self._randn(6, 12)
        self.key_dim = key_dim
        self.finish_episode(length=10)

    def _randn(self, *shape):
        return torch.randn(*shape, device=DEVICE, generator=self.rng)

    def observe(self):
        self.obs.normal_(generator=self.rng)

    def finish_episode(self, length):
        """Store an episode's keys with its discounted returns."""
        keys = self._randn(length, self.key_dim)
        rewards = self._randn(length)
        powers = 0.95 ** torch.arange(length, device=DEVICE, dtype=torch.float32)
        returns = (rewards * powers).flip(0).cumsum(0).flip(0) / powers
        self.memory.append(keys, returns)

    def estimate(self):
        query = (self.obs @ self.project)[:, None, :] + self.offset
        keys, values, priority = self.memory.rows()
        distance = (query[:, :, None, :] - keys).square().sum(-1)
        logits = -0.5 * distance + 0.1 * priority
        weight = logits.softmax(-1)
        q = weight @ values
        return q, q.argmax(dim=1)


agent = Agent()


def step():
    return agent.estimate()


def vary():
    agent.observe()
    agent.finish_episode(length=4)
