from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
BATCH, WIDTH = 3, 6


@dataclass
class Stage:
    weight: torch.Tensor
    inbox: torch.Tensor
    graph: Any = None
    result: Any = None

    @classmethod
    def build(cls, phase):
        n = torch.arange(WIDTH * WIDTH, dtype=torch.float32)
        weight = torch.sin(n + phase).view(WIDTH, WIDTH).to(DEVICE) / 2
        return cls(weight, torch.zeros(BATCH, WIDTH, device=DEVICE))

    def forward(self, x):
        h = torch.tanh(x @ self.weight)
        return x + h @ self.weight.T

    def capture(self, pool):
        self.forward(self.inbox)
        self.graph = graphs.capture(lambda: self.forward(self.inbox), backend=BACKEND, pool=pool)
        self.result = pool.alias(self.graph.outputs)
        self.graph.outputs = None


class Pipeline:
    def __init__(self, depth=3):
        self.stages = [Stage.build(phase) for phase in range(depth)]
        self.x = torch.zeros(BATCH, WIDTH, device=DEVICE)
        self.taps = torch.zeros(depth, BATCH, WIDTH, device=DEVICE)
        self.pool, self.number = None, 0

    def capture(self):
        self.pool = graphs.new_pool(BACKEND)
        for stage in reversed(self.stages):
            stage.capture(self.pool)

    def run(self):
        if self.pool is None:
            self.capture()
        x = self.x
        for tap, stage in zip(self.taps, self.stages, strict=True):
            stage.inbox.copy_(x)
            stage.graph.replay()
            tap.copy_(stage.result)
            x = tap
        return x.clone(), self.taps.sum(dim=(1, 2))

    def eager(self):
        x = self.x
        for tap, stage in zip(self.taps, self.stages, strict=True):
            x = stage.forward(x)
            tap.copy_(x)
        return x, self.taps.sum(dim=(1, 2))

    def shut_down(self):
        self.pool = None
        for stage in self.stages:
            stage.graph = stage.result = None

    def feed(self):
        self.number += 1
        n = torch.arange(BATCH * WIDTH, dtype=torch.float32).view(BATCH, WIDTH)
        self.x.copy_(torch.cos(n * 0.3 * self.number))


def make_engine():
    pipeline = Pipeline()
    return SimpleNamespace(
        step=pipeline.run, vary=pipeline.feed, eager=pipeline.eager, reset=pipeline.shut_down
    )
