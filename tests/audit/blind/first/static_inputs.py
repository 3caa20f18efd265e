"""Decode with one graph for each batch size and input buffers of the runner."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
DIM, CONTEXT = 4, 6


@dataclass
class DecodeBatch:
    query: torch.Tensor
    context_lens: torch.Tensor


@dataclass
class Scheduler:
    finished: list[DecodeBatch] = field(default_factory=list)
    turn: int = 0

    def build(self) -> DecodeBatch:
        size = 2 + self.turn % 2
        query = torch.sin(torch.arange(size * DIM, dtype=torch.float32) * 0.8 + self.turn)
        lens = 1 + (torch.arange(size) + self.turn) % CONTEXT
        return DecodeBatch(query.view(size, DIM).to(DEVICE), lens.to(DEVICE))


class Attention:
    def __init__(self) -> None:
        ramp = torch.arange(CONTEXT * DIM, dtype=torch.float32, device=DEVICE)
        self.keys, self.values = torch.cos(ramp).view(CONTEXT, DIM), torch.sin(ramp * 0.3).view(CONTEXT, DIM)

    def __call__(self, query: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        scores = query @ self.keys.t() / DIM**0.5
        hidden = torch.arange(CONTEXT, device=DEVICE) >= lens[:, None]
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ self.values


class DecodeRunner:
    def __init__(self, model: Attention) -> None:
        self.model = model
        self.queries: dict[int, torch.Tensor] = {}
        self.graphs: dict[int, graphs.CapturedGraph] = {}

    def capture(self, batch: DecodeBatch) -> None:
        size = len(batch.query)
        static = self.queries[size] = batch.query.clone()
        self.model(static, batch.context_lens)
        self.graphs[size] = graphs.capture(lambda: self.model(static, batch.context_lens), backend=BACKEND)

    def run(self, batch: DecodeBatch) -> torch.Tensor:
        size = len(batch.query)
        if size not in self.graphs:
            self.capture(batch)
        self.queries[size].copy_(batch.query)
        self.graphs[size].replay()
        return self.graphs[size].outputs.clone()


def make_engine():
    scheduler, model = Scheduler(), Attention()
    runner, current = DecodeRunner(model), {}
    current["batch"] = scheduler.build()

    def vary():
        scheduler.finished.append(current["batch"])
        scheduler.turn += 1
        current["batch"] = scheduler.build()

    def reset():
        scheduler.turn = 0
        current["batch"] = scheduler.build()

    def eager():
        return model(current["batch"].query, current["batch"].context_lens)

    return SimpleNamespace(step=lambda: runner.run(current["batch"]), vary=vary, reset=reset, eager=eager)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
