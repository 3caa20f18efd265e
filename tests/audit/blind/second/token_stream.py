from dataclasses import dataclass, field

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Slot:
    tokens: list[int] = field(default_factory=list)
    limit: int = 2


class TinyLM:
    def __init__(self, vocabulary=11, dim=5):
        n = torch.arange(vocabulary * dim, dtype=torch.float32)
        self.embedding = torch.sin(n * 0.83).view(vocabulary, dim).to(DEVICE)
        self.mix = torch.cos(torch.arange(dim * dim, dtype=torch.float32)).view(dim, dim).to(DEVICE)

    def __call__(self, token, position):
        x = self.embedding[token] + 0.2 * position[:, None]
        return torch.tanh(x @ self.mix) @ self.embedding.T


class Scheduler:
    def __init__(self, batch=3):
        self.model = TinyLM()
        self.slots = [Slot(limit=2 + i) for i in range(batch)]
        self.token = torch.arange(batch, device=DEVICE)
        self.position = torch.zeros(batch, dtype=torch.long, device=DEVICE)
        self.sent = graphs.host(torch.zeros(batch, dtype=torch.long), pinned=True)
        self.arrivals = iter(range(1, 10_000))
        self.issued = 0

    def decode(self):
        logits = self.model(self.token, self.position)
        best, token = logits.max(dim=-1)
        self.token.copy_(token)
        self.position.add_(1)
        self.sent.copy_(token, non_blocking=True)
        self.issued += 1
        return token, best

    def harvest(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return self.sent.tolist()

    def schedule(self):
        for i, (slot, token) in enumerate(zip(self.slots, self.harvest(), strict=True)):
            slot.tokens.append(token)
            if len(slot.tokens) >= slot.limit:
                self.slots[i] = Slot(limit=2 + token % 3)
                self.token[i].fill_(next(self.arrivals) * 5 % 11)
                self.position[i].zero_()


scheduler = Scheduler()


def step():
    return scheduler.decode()


def vary():
    scheduler.schedule()
