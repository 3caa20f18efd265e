"""Double-DQN loss with a target net that follows the online net every few updates.

Probes may be hung on the nets to count calls and note shapes; they come and go with the phases of a run.
"""

from collections import Counter
from functools import partial

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OBS, ACTIONS, BATCH = 5, 3, 12


def make_net():
    return (
        nn.Sequential(nn.Linear(OBS, 16), nn.ReLU(), nn.Linear(16, ACTIONS)).to(DEVICE).requires_grad_(False)
    )


class Probe:
    """Notes what shapes go through a module."""

    def __init__(self):
        self.counts, self.handles = Counter(), []

    def note(self, name, module, args, output):
        self.counts[name, tuple(output.shape)] += 1

    def attach(self, **nets):
        self.handles = [n.register_forward_hook(partial(self.note, name)) for name, n in nets.items()]

    def detach(self):
        while self.handles:
            self.handles.pop().remove()


class Learner:
    def __init__(self, sync_every, gen):
        self.online, self.target = make_net(), make_net()
        self.sync_every, self.updates, self.gen = sync_every, 0, gen
        self.probe = Probe()
        self.batch = {
            "obs": torch.zeros(BATCH, OBS, device=DEVICE),
            "next_obs": torch.zeros(BATCH, OBS, device=DEVICE),
            "action": torch.zeros(BATCH, dtype=torch.long, device=DEVICE),
            "reward": torch.zeros(BATCH, device=DEVICE),
        }
        self.sync()

    def sync(self):
        self.target.load_state_dict(self.online.state_dict())

    def loss(self, obs, next_obs, action, reward, discount=0.95):
        best = self.online(next_obs).argmax(1, keepdim=True)
        goal = reward + discount * self.target(next_obs).gather(1, best).squeeze(1)
        taken = self.online(obs).gather(1, action[:, None]).squeeze(1)
        return nn.functional.smooth_l1_loss(taken, goal, reduction="none"), goal

    def elsewhere(self):
        """An update of the online net as another process makes it, with a sync when it is due."""
        for p in self.online.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=self.gen).to(DEVICE))
        self.updates += 1
        if self.updates % self.sync_every == 0:
            self.sync()
            self.probe.detach()
        elif not self.probe.handles:
            self.probe.attach(online=self.online, target=self.target)

    def refill(self):
        for name, column in self.batch.items():
            if name == "action":
                column.copy_(torch.randint(0, ACTIONS, (BATCH,), generator=self.gen))
            else:
                column.copy_(torch.randn(column.shape, generator=self.gen))


torch.manual_seed(60)
learner = Learner(sync_every=2, gen=torch.Generator().manual_seed(61))
learner.refill()


def step():
    losses, goal = learner.loss(**learner.batch)
    return {"losses": losses, "goal": goal}


def vary():
    learner.elsewhere()
    learner.refill()
