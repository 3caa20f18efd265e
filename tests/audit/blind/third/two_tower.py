"""Retrieval re-ranking: a user tower against the candidates of one request, padded to a bucket."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUCKETS = (8, 40)
HOUSE_PICKS = list(range(300, 310))


def bucket_for(n):
    for size in BUCKETS:
        if n <= size:
            return size
    raise ValueError(f"{n} candidates exceed {BUCKETS[-1]}")


class Request:
    """Candidates of one user. The house picks are always among them."""

    def __init__(self):
        self.items = torch.zeros(BUCKETS[-1], dtype=torch.long, device=DEVICE)
        self.profile = torch.zeros(8, device=DEVICE)
        self.live = torch.zeros((), dtype=torch.long, device=DEVICE)
        self.length = 0

    def fill(self, found, mood):
        ids = (HOUSE_PICKS + found)[: BUCKETS[-1]]
        self.length = len(ids)
        self.live.fill_(self.length)
        self.items.zero_()
        self.items[: self.length].copy_(torch.tensor(ids))
        self.profile.copy_(torch.sin(torch.arange(8) * mood))


class TwoTower(nn.Module):
    def __init__(self, items=320, width=12):
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.user = nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, width))
        self.mix = nn.Linear(width, width, bias=False)

    def forward(self, profile, ids, live):
        padding = torch.arange(ids.numel(), device=ids.device) >= live
        e = self.items(ids)
        affinity = (self.mix(e) @ e.t()).masked_fill(padding[None, :], float("-inf"))
        context = torch.softmax(affinity, dim=-1) @ e
        scores = (e + context) @ self.user(profile)
        return torch.softmax(scores.masked_fill(padding, float("-inf")), dim=0)


class Service:
    def __init__(self):
        torch.manual_seed(4)
        self.model = TwoTower().to(DEVICE).requires_grad_(False).eval()
        self.request = Request()
        self.request.fill([5, 9, 14], mood=0.3)
        self.served = 0

    def next_request(self):
        self.served += 1
        found = [(17 * self.served + 29 * k) % 300 for k in range((11 * self.served) % 37)]
        self.request.fill(found, mood=0.3 + 0.4 * self.served)

    def score(self):
        request = self.request
        size = bucket_for(request.length)
        return self.model(request.profile, request.items[:size], request.live)


service = Service()
step = service.score
vary = service.next_request


def rows():
    return service.request.length
