"""Temporal-difference errors of a critic on the most recent part of a ring of transitions.

The environment side pushes a few transitions between two calls of `step`; old ones are overwritten in place.
"""

from collections.abc import Mapping

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OBS, CAPACITY, SPAN, PUSH = 6, 96, 16, 8


class Ring:
    def __init__(self, fields):
        self.columns = {n: torch.zeros(CAPACITY, *shape, device=DEVICE) for n, shape in fields.items()}
        self.head = 0

    def push(self, **rows):
        count = len(next(iter(rows.values())))
        for name, values in rows.items():
            self.columns[name][self.head : self.head + count].copy_(values)
        self.head = (self.head + count) % CAPACITY


class Recent(Mapping):
    """The last `span` rows of each column, as views: nothing is copied."""

    def __init__(self, ring, span):
        self.ring, self.span = ring, span

    def __getitem__(self, name):
        return self.ring.columns[name].narrow(0, max(0, self.ring.head - self.span), self.span)

    def __iter__(self):
        return iter(self.ring.columns)

    def __len__(self):
        return len(self.ring.columns)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(OBS, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, obs):
        return self.head(torch.tanh(self.body(obs))).squeeze(-1)


def td_errors(critic, obs, next_obs, reward, done, discount=0.97):
    bootstrap = critic(next_obs) * (1.0 - done)
    return reward + discount * bootstrap - critic(obs)


torch.manual_seed(3)
critic = Critic().to(DEVICE).requires_grad_(False)
gen = torch.Generator().manual_seed(21)
ring = Ring({"obs": (OBS,), "next_obs": (OBS,), "reward": (), "done": ()})
recent = Recent(ring, SPAN)


class Walker:
    """A drifting random walk that ends now and then."""

    def __init__(self):
        self.state = torch.zeros(OBS)

    def rollout(self, count):
        rows = {"obs": [], "next_obs": [], "reward": [], "done": []}
        for _ in range(count):
            after = 0.9 * self.state + torch.randn(OBS, generator=gen)
            ended = float(torch.rand((), generator=gen) < 0.1)
            for name, value in zip(rows, (self.state, after, after[:2].sum(), torch.tensor(ended))):
                rows[name].append(value)
            self.state = after if not ended else torch.zeros(OBS)
        return {name: torch.stack(values) for name, values in rows.items()}


walker = Walker()
ring.push(**walker.rollout(24))


def step():
    delta = td_errors(critic, **recent)
    return {"delta": delta, "priority": delta.abs().add(1e-3).pow(0.6)}


def vary():
    ring.push(**walker.rollout(PUSH))
