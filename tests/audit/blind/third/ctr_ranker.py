"""Click-through ranking: candidate ids arrive in staging slots of host memory, one slot per request in flight."""

from contextlib import contextmanager

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PINNED = torch.cuda.is_available()
CANDIDATES, FIELDS, VOCAB = 16, 4, 97


class Slot:
    def __init__(self):
        self.ids = torch.zeros(CANDIDATES, FIELDS, dtype=torch.int32, pin_memory=PINNED)
        self.dense = torch.zeros(CANDIDATES, 3, pin_memory=PINNED)


class Staging:
    """Lets the feature service write the next request while the last one is still on its way to the device."""

    def __init__(self, depth=2):
        self.slots = [Slot() for _ in range(depth)]
        self.ready = 0

    @contextmanager
    def writing(self):
        behind = (self.ready + 1) % len(self.slots)
        yield self.slots[behind]
        self.ready = behind

    @property
    def front(self):
        return self.slots[self.ready]


class Ranker(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.table = nn.Embedding(VOCAB, width)
        self.mlp = nn.Sequential(nn.Linear(FIELDS * width + 3, 16), nn.ReLU(), nn.Linear(16, 1))
        self.staging = Staging()
        self.register_buffer("ids", torch.zeros(CANDIDATES, FIELDS, dtype=torch.long))
        self.register_buffer("dense", torch.zeros(CANDIDATES, 3))

    def upload(self):
        slot = self.staging.front
        self.ids.copy_(slot.ids, non_blocking=True)
        self.dense.copy_(slot.dense, non_blocking=True)

    def forward(self):
        self.upload()
        looked_up = self.table(self.ids).flatten(1)
        logits = self.mlp(torch.cat([looked_up, self.dense], dim=1)).squeeze(1)
        return torch.sigmoid(logits * 3.0)


torch.manual_seed(21)
ranker = Ranker().to(DEVICE).requires_grad_(False)
requests = 0


def step():
    return ranker()


def vary():
    global requests
    requests += 1
    with ranker.staging.writing() as slot:
        cells = torch.arange(CANDIDATES * FIELDS, dtype=torch.int32).view(CANDIDATES, FIELDS)
        slot.ids.copy_((cells * 7 + requests * 31) % VOCAB)
        slot.dense.copy_(torch.sin(torch.arange(CANDIDATES * 3.0).view(CANDIDATES, 3) + requests))


def rows():
    return CANDIDATES - requests % 3
