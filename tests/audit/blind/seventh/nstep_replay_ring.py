"""Ring of recent transitions with n-step returns, for an off-policy agent.

The write position is needed in two places: on the host for the fill ratio in
the logs, and on the device for the scatter of the new transition.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Ring:
    def __init__(self, capacity, obs_dim):
        self.capacity = capacity
        self.obs = torch.zeros(capacity, obs_dim, device=DEVICE)
        self.reward = torch.zeros(capacity, device=DEVICE)
        self.head = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.cursor = 0
        self.total = 0
        self._lag = torch.arange(capacity, device=DEVICE)

    def push(self, obs, reward):
        self.obs.index_copy_(0, self.head, obs[None])
        self.reward.index_copy_(0, self.head, reward.reshape(1))
        self.head.add_(1).remainder_(self.capacity)
        self.cursor = (self.cursor + 1) % self.capacity
        self.total += 1

    def newest_first(self):
        index = (self.head - 1 - self._lag).remainder(self.capacity)
        return self.obs[index], self.reward[index]

    def fill_ratio(self):
        return min(1.0, self.total / self.capacity)

    def clear(self):
        self.obs.zero_()
        self.reward.zero_()
        self.head.zero_()
        self.cursor = self.total = 0


class Critic:
    def __init__(self, obs_dim, generator):
        self.w = torch.randn(obs_dim, 16, device=DEVICE, generator=generator) * 0.4
        self.v = torch.randn(16, device=DEVICE, generator=generator) * 0.4

    def __call__(self, obs):
        return torch.tanh(obs @ self.w) @ self.v


class Agent:
    def __init__(self, obs_dim=5, capacity=7, horizon=4, seed=91):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.ring = Ring(capacity, obs_dim)
        self.critic = Critic(obs_dim, self.rng)
        self.horizon = horizon
        self.discount = 0.97 ** torch.arange(horizon, device=DEVICE, dtype=torch.float32)
        self.bootstrap = 0.97**horizon
        self.obs = torch.zeros(obs_dim, device=DEVICE)
        self.reward = torch.zeros((), device=DEVICE)
        self.log = []
        self.environment()

    def environment(self):
        self.obs.normal_(generator=self.rng)
        self.reward.copy_(self.obs.sum().tanh())

    def learn(self):
        self.ring.push(self.obs, self.reward)
        obs, reward = self.ring.newest_first()
        window = reward[: self.horizon].flip(0)
        target = (self.discount * window).sum() + self.bootstrap * self.critic(obs[0])
        error = target - self.critic(obs[self.horizon])
        self.log.append((self.ring.cursor, self.ring.fill_ratio()))
        return target, error, obs


agent = Agent()


def step():
    return agent.learn()


def vary():
    agent.environment()


def reset():
    agent.ring.clear()
    agent.log.clear()
