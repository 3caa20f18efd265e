"""Recommender serving: score candidates against the mean of a user's recent clicks.

Histories are padded with item 0, whose row of the table is zero.
"""

from collections import deque
from dataclasses import dataclass, field

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ITEMS, DIM, WINDOW, CANDIDATES = 50, 8, 10, 6


@dataclass
class Session:
    user: int
    clicks: deque = field(default_factory=lambda: deque(maxlen=WINDOW))

    def padded(self):
        return list(self.clicks) + [0] * (WINDOW - len(self))

    def __len__(self):
        return len(self.clicks)


class SessionStore:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.sessions = {}

    def _draw(self, n):
        return torch.randint(1, ITEMS, (n,), generator=self.gen).tolist()

    def visit(self, user, new_clicks):
        session = self.sessions.setdefault(user, Session(user))
        session.clicks.extend(self._draw(new_clicks))
        return session, self._draw(CANDIDATES)


class TwoTower:
    def __init__(self):
        gen = torch.Generator().manual_seed(12)
        self.items = torch.randn(ITEMS, DIM, generator=gen).to(DEVICE)
        self.items[0] = 0.0
        self.mix = (torch.randn(DIM, DIM, generator=gen) * 0.5).to(DEVICE)

    def user(self, ids, session):
        pooled = self.items[ids].sum(0) / max(1, len(session))
        return pooled + torch.tanh(pooled @ self.mix)

    def score(self, user, candidates):
        return torch.sigmoid(self.items[candidates] @ user)


class Ranker:
    TRAFFIC = [(1, 4), (2, 2), (1, 3), (3, 9), (2, 4), (4, 1), (3, 1)]

    def __init__(self):
        self.model = TwoTower()
        self.store = SessionStore(23)
        self.history = torch.zeros(WINDOW, dtype=torch.long, device=DEVICE)
        self.candidates = torch.zeros(CANDIDATES, dtype=torch.long, device=DEVICE)
        self.turn = 0
        self.accept()

    def accept(self):
        user, new_clicks = self.TRAFFIC[self.turn % len(self.TRAFFIC)]
        self.turn += 1
        self.session, shown = self.store.visit(user, new_clicks)
        self.history.copy_(torch.tensor(self.session.padded()))
        self.candidates.copy_(torch.tensor(shown))

    def rank(self):
        user = self.model.user(self.history, self.session)
        scores = self.model.score(user, self.candidates)
        return {"scores": scores, "order": scores.argsort(descending=True)}


ranker = Ranker()


@torch.no_grad()
def step():
    return ranker.rank()


def vary():
    ranker.accept()
