"""Asynchronous scheduling: a step is prepared while the one before it is still in flight, so what is fed back
is the result of the step before that."""

import math
from collections import deque

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HIDDEN, VOCAB, LAG = 4, 16, 32, 2
gen = torch.Generator().manual_seed(41)


def weights(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=gen) / math.sqrt(shape[0])).to(DEVICE)


class DraftHead:
    """Fuses the embedding of a token with features of the target model, as EAGLE does."""

    def __init__(self) -> None:
        self.embedding = weights(VOCAB, HIDDEN) * 5
        self.fuse = weights(2 * HIDDEN, HIDDEN)
        self.lm_head = weights(HIDDEN, VOCAB)

    def __call__(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        x = torch.cat([torch.nn.functional.embedding(ids, self.embedding), features], dim=1)
        return torch.tanh(x @ self.fuse)


class Worker:
    def __init__(self) -> None:
        self.head = DraftHead()
        self.ids = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.features = torch.zeros(BATCH, HIDDEN, device=DEVICE)
        self.result: torch.Tensor | None = None

    def execute(self) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.head(self.ids, self.features)
        self.result = hidden
        return hidden, hidden @ self.head.lm_head


class Scheduler:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.in_flight: deque[torch.Tensor] = deque()
        self.issued = 0

    def collect(self) -> None:
        """Queue the last result; feed the one that has had the time to finish."""
        self.in_flight.append(self.worker.result)
        if len(self.in_flight) == LAG:
            self.worker.features.copy_(self.in_flight.popleft())

    def schedule(self, ids: torch.Tensor) -> None:
        if self.issued:
            self.collect()
        self.worker.ids.copy_(ids)
        self.issued += 1

    def clear(self) -> None:
        self.in_flight.clear()
        self.issued = 0
        self.worker.features.zero_()


worker = Worker()
scheduler = Scheduler(worker)


def step():
    return worker.execute()


def vary():
    scheduler.schedule(torch.randint(VOCAB, (BATCH,), generator=gen))


def reset():
    scheduler.clear()
