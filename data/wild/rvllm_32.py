"""Requests that asked for sampling could get the most likely token each time. The captured decode step ends
in an argmax on the device and returns its tokens, and whether a batch may be replayed was a question of its
size alone; a batch that samples went into the graph as well. Repaired by replaying only steps of one token
for each request and with greedy parameters.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "rvLLM"
LINK = "https://github.com/m0at/rvllm/pull/32"
MECHANISM = "incomplete-key"
CAUSE = "temperature"
LINE = "return batch.size in self.graphs"
EXECUTORS = ("emulated", "cuda")

SIZES, HIDDEN, VOCAB = (1, 2), 4, 8


@dataclass
class Batch:
    size: int
    temperature: float
    hidden: torch.Tensor
    noise: torch.Tensor  # of requests' generators


class GraphRunner:
    """Decode steps by size: logits and their argmax."""

    def __init__(self, fixed: bool, weight: torch.Tensor, backend: str):
        self.fixed, self.weight = fixed, weight
        self.hidden = torch.zeros(max(SIZES), HIDDEN, device=weight.device)
        self.graphs = {}
        for size in SIZES:
            self.greedy(size)
            self.graphs[size] = capture(lambda n=size: self.greedy(n), backend=backend)

    def greedy(self, size: int) -> torch.Tensor:
        return (self.hidden[:size] @ self.weight).argmax(1)

    def can_replay(self, batch: Batch) -> bool:
        if self.fixed and batch.temperature > 0:
            return False
        return batch.size in self.graphs

    def replay(self, batch: Batch) -> torch.Tensor:
        self.hidden[: batch.size].copy_(batch.hidden)
        self.graphs[batch.size].replay()
        return self.graphs[batch.size].outputs


class Worker:
    def __init__(self, fixed: bool, device: torch.device):
        grid = torch.arange(HIDDEN * VOCAB, device=device)
        self.weight = torch.sin(grid * 1.0).view(HIDDEN, VOCAB)
        self.runner = GraphRunner(fixed, self.weight, "cuda" if device.type == "cuda" else "emulated")

    def execute(self, batch: Batch, use_graphs: bool) -> torch.Tensor:
        if use_graphs and self.runner.can_replay(batch):
            return self.runner.replay(batch)
        logits = batch.hidden @ self.weight
        if batch.temperature > 0:
            logits = logits / batch.temperature + batch.noise
        return logits.argmax(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    worker, numbers = Worker(fixed, device), torch.Generator().manual_seed(4)
    temperatures = iter((0.0, 1.5, 0.0, 1.0) * 2)

    def draw(temperature: float, size: int) -> Batch:
        hidden, uniform = (torch.rand(size, n, generator=numbers).to(device) for n in (HIDDEN, VOCAB))
        return Batch(size, temperature, hidden, -torch.log(-torch.log(uniform)))

    engine = SimpleNamespace(worker=worker, batch=draw(0.0, 2))

    def vary() -> None:
        engine.batch = draw(next(temperatures), 2)

    return SimpleNamespace(
        step=lambda: worker.execute(engine.batch, use_graphs=True),
        eager=lambda: worker.execute(engine.batch, use_graphs=False),
        own_graphs=True,
        vary=vary,
        engine=engine,
    )
