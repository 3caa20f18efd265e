"""Two-tower ranker that serves candidates while a trainer publishes fresh weights now and then."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
USERS, ITEMS, WIDTH, CANDIDATES = 40, 120, 12, 16


class Tower(nn.Module, ABC):
    def __init__(self, entries):
        super().__init__()
        self.table = nn.Embedding(entries, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    @abstractmethod
    def shape(self, hidden): ...

    def forward(self, ids):
        return F.normalize(self.shape(self.mix(self.table(ids))), dim=-1)


class UserTower(Tower):
    def shape(self, hidden):
        return torch.tanh(hidden)


class ItemTower(Tower):
    def shape(self, hidden):
        return F.gelu(hidden)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = UserTower(USERS), ItemTower(ITEMS)
        self.temperature = nn.Parameter(torch.tensor(0.3))

    def forward(self, user, candidates):
        scores = torch.einsum("bd,bcd->bc", self.users(user), self.items(candidates))
        return torch.softmax(scores / self.temperature.abs().clamp_min(0.05), dim=-1)


class Publisher:
    """Keeps every version that the trainer has released."""

    def __init__(self, template, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.template = {k: v.clone() for k, v in template.state_dict().items()}
        self.versions = []

    def release(self):
        version = {
            key: (torch.randn(value.shape, generator=self.gen) * 0.4).to(DEVICE)
            for key, value in self.template.items()
        }
        self.versions.append(version)
        return version


ranker = Ranker().to(DEVICE).eval()
publisher = Publisher(ranker, seed=21)
first = publisher.release()
ranker.load_state_dict(first, assign=True)
users = torch.zeros(8, dtype=torch.long, device=DEVICE)
candidates = torch.zeros(8, CANDIDATES, dtype=torch.long, device=DEVICE)
traffic = torch.Generator().manual_seed(2)
served = 0


@torch.no_grad()
def step():
    probabilities = ranker(users, candidates)
    best, where = probabilities.topk(4, dim=-1)
    return best, candidates.gather(1, where)


def vary():
    global served
    users.copy_(torch.randint(USERS, users.shape, generator=traffic))
    candidates.copy_(torch.randint(ITEMS, candidates.shape, generator=traffic))
    served += 1
    if served % 3 == 0:
        ranker.load_state_dict(publisher.release(), assign=True)
