from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
ENVS, OBS, ACTIONS = 3, 4, 2


class RunningMoments:
    def __init__(self, dim):
        self.count = torch.zeros((), device=DEVICE)
        self.mean = torch.zeros(dim, device=DEVICE)
        self.square = torch.zeros(dim, device=DEVICE)

    def update(self, obs):
        self.count.add_(obs.shape[0])
        delta = obs - self.mean
        self.mean.add_(delta.sum(dim=0) / self.count)
        self.square.add_((delta * (obs - self.mean)).sum(dim=0))

    def normalise(self, obs):
        variance = self.square / self.count.clamp(min=2)
        return ((obs - self.mean) / torch.sqrt(variance + 1e-3)).clamp(-5, 5)


class Actor:
    def __init__(self):
        n = torch.arange(OBS * ACTIONS, dtype=torch.float32)
        self.weight = torch.sin(n + 0.2).view(OBS, ACTIONS).to(DEVICE)

    def __call__(self, obs):
        return torch.tanh(obs @ self.weight)


class Agent:
    def __init__(self):
        self.moments, self.actor = RunningMoments(OBS), Actor()
        self.obs = torch.zeros(ENVS, OBS, device=DEVICE)
        self.graph, self.tick = None, 0

    def act(self):
        self.moments.update(self.obs)
        return self.actor(self.moments.normalise(self.obs))

    def compile(self, warmups=2):
        for _ in range(warmups):
            self.act()
        self.graph = graphs.capture(self.act, backend=BACKEND)

    def run(self):
        if self.graph is None:
            self.compile()
        self.graph.replay()
        return self.graph.outputs

    def observe(self):
        self.tick += 1
        n = torch.arange(ENVS * OBS, dtype=torch.float32).view(ENVS, OBS)
        self.obs.copy_(3 * torch.sin(n * self.tick) + self.tick)


def make_engine():
    agent = Agent()
    return SimpleNamespace(step=agent.run, vary=agent.observe, eager=agent.act)
