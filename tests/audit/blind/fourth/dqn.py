"""Double Q-learning on a gridworld's replay memory, with a target network that is copied now and then."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STATES, ACTIONS, BATCH = 8, 4, 16


class Dueling(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.body = nn.Linear(STATES, 24)
        self.value, self.advantage = nn.Linear(24, 1), nn.Linear(24, ACTIONS)
        gen = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.3)

    def forward(self, state):
        hidden = torch.relu(self.body(state))
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(-1, keepdim=True)


class Learner:
    def __init__(self, every=3, lr=0.2, gamma=0.95):
        self.online = Dueling(120).to(DEVICE)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.initial = copy.deepcopy(self.online.state_dict())
        self.every, self.lr, self.gamma = every, lr, gamma
        self.updates = torch.zeros((), dtype=torch.long, device=DEVICE)
        self.calls, self.journal = 0, []

    def loss(self, s, a, r, s2, done):
        chosen = self.online(s).gather(1, a[:, None])[:, 0]
        with torch.no_grad():
            best = self.online(s2).argmax(-1, keepdim=True)
            ahead = self.target(s2).gather(1, best)[:, 0]
            goal = r + self.gamma * (1 - done) * ahead
        return F.smooth_l1_loss(chosen, goal)

    def update(self, batch):
        params = list(self.online.parameters())
        loss = self.loss(*batch)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            norm = torch.stack([g.norm() for g in grads]).norm()
            scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
            for p, g in zip(params, grads):
                p.sub_(self.lr * scale * g)
            self.sync()
        self.calls += 1
        if self.calls % 100 == 0:
            self.journal.append(self.calls)
        return loss.detach(), norm

    def sync(self):
        self.updates += 1
        due = self.updates % self.every == 0
        for old, new in zip(self.target.parameters(), self.online.parameters()):
            old.copy_(torch.where(due, new, old))


learner = Learner()
batch = [
    torch.zeros(BATCH, STATES, device=DEVICE),
    torch.zeros(BATCH, dtype=torch.long, device=DEVICE),
    torch.zeros(BATCH, device=DEVICE),
    torch.zeros(BATCH, STATES, device=DEVICE),
    torch.zeros(BATCH, device=DEVICE),
]
memory = torch.Generator().manual_seed(121)


def step():
    loss, norm = learner.update(batch)
    return loss, norm, learner.target.value.weight.clone()


def vary():
    here, there = torch.randn(2, BATCH, STATES, generator=memory)
    action = torch.randint(ACTIONS, (BATCH,), generator=memory)
    ended = (torch.rand(BATCH, generator=memory) < 0.1).float()
    for store, new in zip(batch, (here, action, here[:, 0] * (action - 1.5), there, ended)):
        store.copy_(new)


def reset():
    learner.online.load_state_dict(learner.initial)
    learner.target.load_state_dict(learner.initial)
    learner.updates.zero_()
    learner.calls = 0
