"""Actor side of an actor/learner pair.

The actor unrolls its policy in a small linear environment.  The learner
publishes parameter snapshots, and the actor adopts one between two rollouts.
"""

from collections import deque

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OBS, ACT, HORIZON = 6, 2, 5


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(OBS, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.mean = nn.Linear(24, ACT)
        self.register_buffer("obs_mean", torch.zeros(OBS))
        self.register_buffer("obs_std", torch.ones(OBS))

    def forward(self, obs):
        z = (obs - self.obs_mean) / self.obs_std
        return torch.tanh(self.mean(self.trunk(z)))


class Learner:
    """Stands in for the optimiser process: random walks in parameter space."""

    def __init__(self, template, seed):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.current = {k: v.detach().clone() for k, v in template.state_dict().items()}
        self.version = 0

    def publish(self):
        self.version += 1
        fresh = {}
        for name, value in self.current.items():
            nudge = torch.randn(value.shape, device=DEVICE, generator=self.rng)
            if name == "obs_std":
                fresh[name] = value * 1.05
            else:
                fresh[name] = value + 0.15 * nudge
        self.current = fresh
        return self.version, {k: v.clone() for k, v in fresh.items()}


class Actor:
    def __init__(self):
        torch.manual_seed(21)
        self.policy = Policy().to(DEVICE).requires_grad_(False)
        self.rng = torch.Generator(device=DEVICE).manual_seed(22)
        self.dynamics = 0.9 * torch.eye(OBS, device=DEVICE)
        self.control = 0.3 * torch.randn(ACT, OBS, device=DEVICE, generator=self.rng)
        self.obs = torch.randn(32, OBS, device=DEVICE, generator=self.rng)
        self.inbox = deque(maxlen=1)
        self.version = 0

    def reset_environments(self):
        self.obs.normal_(generator=self.rng)

    def adopt(self):
        """Take the newest snapshot, if any, without another pass of copies."""
        while self.inbox:
            version, state = self.inbox.popleft()
            if version > self.version:
                self.policy.load_state_dict(state, assign=True)
                self.version = version

    def rollout(self):
        obs, rewards, actions = self.obs, [], []
        for _ in range(HORIZON):
            act = self.policy(obs)
            obs = obs @ self.dynamics + act @ self.control
            rewards.append(-(obs * obs).sum(1) - 0.1 * (act * act).sum(1))
            actions.append(act)
        return torch.stack(rewards), torch.stack(actions)


actor = Actor()
learner = Learner(actor.policy, seed=23)
_round = 0


def step():
    with torch.no_grad():
        return actor.rollout()


def vary():
    global _round
    _round += 1
    actor.reset_environments()
    if _round % 3 == 2:
        actor.inbox.append(learner.publish())
    actor.adopt()
