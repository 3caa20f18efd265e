"""Per-request decode loop for a hybrid (state-space) layer, in scheduling order."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, DIM, STATE = 4, 12, 8


@dataclass
class Request:
    name: str
    row: int
    priority: int
    decoded: int = 0


class StateCache:
    """Recurrent state of each row: one copy to read, one that the step writes."""

    def __init__(self):
        self.prev = torch.zeros(ROWS, STATE, DIM, device=DEVICE)
        self.next = torch.zeros(ROWS, STATE, DIM, device=DEVICE)

    def commit(self, hidden):
        """Stand-in for the prefill of the next chunk, which rewrites the readable copy."""
        self.prev.copy_(torch.tanh(self.prev + 0.3 * hidden[:, None, :]))

    def clear(self, row):
        self.prev[row].zero_()


class SSMLayer:
    def __init__(self, cache):
        gen = torch.Generator().manual_seed(281)
        self.cache = cache
        self.decay = torch.rand(STATE, 1, generator=gen).to(DEVICE)
        self.b = torch.randn(DIM, STATE, generator=gen).to(DEVICE) / 4
        self.c = torch.randn(DIM, STATE, generator=gen).to(DEVICE) / 4

    def decode_row(self, x, row, out):
        state = self.cache.prev[row] * self.decay + torch.outer(x @ self.b, x)
        self.cache.next[row].copy_(state)
        out.copy_(x @ self.c @ state)


class Engine:
    def __init__(self):
        self.cache = StateCache()
        self.layer = SSMLayer(self.cache)
        self.hidden = torch.zeros(ROWS, DIM, device=DEVICE)
        self.output = torch.zeros(ROWS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(282)
        self.running = [Request(f"r{i}", row=i, priority=i) for i in range(ROWS)]
        self.counter = ROWS
        self.load()

    def load(self):
        self.hidden.copy_(torch.randn(ROWS, DIM, generator=self.gen))

    def execute(self):
        for req in self.running:
            self.layer.decode_row(self.hidden[req.row], req.row, self.output[req.row])
        return self.output

    def schedule(self):
        """Commit states, retire the longest request, and reorder by priority."""
        self.cache.commit(self.hidden)
        for req in self.running:
            req.decoded += 1
            req.priority = (req.priority * 5 + 3 + req.row) % 7
        oldest = max(self.running, key=lambda r: (r.decoded, r.row))
        if self.counter % 2 == 0:
            self.running.remove(oldest)
            self.cache.clear(oldest.row)
            self.running.append(Request(f"r{self.counter}", oldest.row, priority=6))
        self.counter += 1
        self.running.sort(key=lambda r: (r.priority, r.row))
        self.load()


engine = Engine()


def step():
    return engine.execute()


def vary():
    engine.schedule()
