from dataclasses import dataclass
from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
USERS, ITEMS, DIM, CANDIDATES = 5, 12, 4, 6


@dataclass
class Session:
    user: torch.Tensor
    candidates: torch.Tensor

    def refresh(self, offset):
        self.candidates.add_(offset).remainder_(ITEMS)


class TwoTower:
    def __init__(self):
        self.users = torch.sin(torch.arange(USERS * DIM, dtype=torch.float32)).view(USERS, DIM).to(DEVICE)
        self.items = torch.cos(torch.arange(ITEMS * DIM, dtype=torch.float32)).view(ITEMS, DIM).to(DEVICE)

    def __call__(self, user, candidates):
        return self.items[candidates] @ self.users[user].squeeze(0)


class Ranker:
    def __init__(self):
        self.model = TwoTower()
        self.user = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.candidates = torch.zeros(CANDIDATES, dtype=torch.long, device=DEVICE)
        self.session = self.loaded = None
        self.graph = None
        self.calls = 0

    def load(self):
        if self.session is not self.loaded:
            self.user.copy_(self.session.user)
            self.candidates.copy_(self.session.candidates)
            self.loaded = self.session

    def rank(self):
        self.load()
        if self.graph is None:
            self.model(self.user, self.candidates)
            self.graph = graphs.capture(lambda: self.model(self.user, self.candidates), backend=BACKEND)
        self.graph.replay()
        return self.graph.outputs

    def eager(self):
        return self.model(self.session.user, self.session.candidates)

    def browse(self):
        self.calls += 1
        if self.calls % 3 == 1:
            start = torch.arange(CANDIDATES, device=DEVICE) + self.calls
            user = torch.full((1,), self.calls % USERS, device=DEVICE)
            self.session = Session(user, start % ITEMS)
        else:
            self.session.refresh(self.calls)


def make_engine():
    ranker = Ranker()
    return SimpleNamespace(step=ranker.rank, vary=ranker.browse, eager=ranker.eager)
