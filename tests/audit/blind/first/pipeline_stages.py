"""Two pipeline stages on one device: graphs of one pool, and a hand-over buffer between them."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
MICRO, TOKENS, DIM = 3, 2, 6


class Stage:
    def __init__(self, depth: int, rate: float) -> None:
        ramp = torch.arange(DIM * DIM, dtype=torch.float32, device=DEVICE)
        self.weights = [torch.sin(ramp * (rate + 0.2 * i)).view(DIM, DIM) for i in range(depth)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight) + 0.5 * x
        return x


@dataclass
class StageGraph:
    inputs: torch.Tensor
    graph: graphs.CapturedGraph

    @classmethod
    def make(cls, stage: Stage, pool: graphs.GraphPool) -> "StageGraph":
        inputs = torch.zeros(TOKENS, DIM, device=DEVICE)
        stage(inputs)
        return cls(inputs, graphs.capture(lambda: stage(inputs), backend=BACKEND, pool=pool))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        self.inputs.copy_(x)
        self.graph.replay()
        return self.graph.outputs


class Pipeline:
    def __init__(self) -> None:
        self.stages = [Stage(3, 0.3), Stage(2, 0.8)]
        pool = graphs.new_pool(BACKEND)
        self.graphs = [StageGraph.make(stage, pool) for stage in self.stages]
        self.results = torch.zeros(MICRO, TOKENS, DIM, device=DEVICE)

    def run(self, batch: torch.Tensor) -> torch.Tensor:
        for index, micro in enumerate(batch):
            for stage in self.graphs:
                micro = stage.run(micro)
            self.results[index].copy_(micro)
        return self.results

    def run_eager(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.stages[1](self.stages[0](micro)) for micro in batch])


def make_engine():
    pipeline, state = Pipeline(), {}

    def at(turn: int) -> None:
        values = torch.cos(torch.arange(MICRO * TOKENS * DIM, dtype=torch.float32) * 0.35 + turn)
        state.update(turn=turn, batch=values.view(MICRO, TOKENS, DIM).to(DEVICE))

    at(0)
    return SimpleNamespace(
        step=lambda: pipeline.run(state["batch"]),
        vary=lambda: at(state["turn"] + 1),
        reset=lambda: at(0),
        eager=lambda: pipeline.run_eager(state["batch"]),
    )


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
