"""A runner that captures a graph the first time that it meets a batch size."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
DIM = 6


@dataclass
class Entry:
    inputs: torch.Tensor
    graph: graphs.CapturedGraph


class Mlp:
    def __init__(self) -> None:
        ramp = torch.arange(DIM * DIM, dtype=torch.float32, device=DEVICE)
        self.up, self.down = torch.sin(ramp * 0.4).view(DIM, DIM), torch.cos(ramp * 0.3).view(DIM, DIM)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(x @ self.up) @ self.down


class Runner:
    def __init__(self, model: Mlp) -> None:
        self.model = model
        self.entries: dict[int, Entry] = {}

    def _make(self, x: torch.Tensor) -> Entry:
        inputs = x.clone()
        self.model(inputs)
        return Entry(inputs, graphs.capture(lambda: self.model(inputs), backend=BACKEND))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        key = x.shape[0]
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = self._make(x)
        else:
            entry.inputs.copy_(x)
            entry.graph.replay()
        return entry.graph.outputs


class Queue:
    """Requests as they come in: their batch sizes repeat."""

    sizes = (2, 3, 2, 4, 3)

    def __init__(self) -> None:
        self.turn, self.batch = -1, None
        self.pop()

    def pop(self) -> None:
        self.turn += 1
        size = self.sizes[self.turn % len(self.sizes)]
        values = torch.sin(torch.arange(size * DIM, dtype=torch.float32) * 0.6 + self.turn)
        self.batch = values.view(size, DIM).to(DEVICE)


def make_engine():
    queue, model = Queue(), Mlp()
    runner = Runner(model)

    def reset():
        queue.turn = -1
        queue.pop()
        runner.entries.clear()

    return SimpleNamespace(
        step=lambda: runner(queue.batch), vary=queue.pop, reset=reset, eager=lambda: model(queue.batch)
    )


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
