from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
PIXELS, CLASSES = 24, 3


@dataclass
class Recorded:
    graph: Any
    result: torch.Tensor

    def __call__(self):
        self.graph.replay()
        return self.result


class Head:
    def __init__(self, outputs, phase):
        n = torch.arange(PIXELS * outputs, dtype=torch.float32)
        self.weight = (0.4 * torch.sin(n * 0.77 + phase)).view(PIXELS, outputs).to(DEVICE)

    def __call__(self, image):
        return torch.tanh(image @ self.weight)


class Perception:
    def __init__(self):
        self.image = torch.zeros(4, PIXELS, device=DEVICE)
        self.heads = {"segments": Head(CLASSES, 0.0), "depth": Head(CLASSES, 1.0), "flow": Head(CLASSES, 2.0)}
        self.recorded = {}
        self.pool = graphs.new_pool(BACKEND)
        self.shots = 0

    def record(self, head):
        head(self.image)
        graph = graphs.capture(lambda: head(self.image), backend=BACKEND, pool=self.pool)
        result = self.pool.alias(graph.outputs)
        graph.outputs = None
        return Recorded(graph, result)

    def run(self):
        if not self.recorded:
            self.recorded = {name: self.record(head) for name, head in self.heads.items()}
        return {name: recorded() for name, recorded in self.recorded.items()}

    def eager(self):
        return {name: head(self.image) for name, head in self.heads.items()}

    def shoot(self):
        self.shots += 1
        n = torch.arange(self.image.numel(), dtype=torch.float32).view_as(self.image)
        self.image.copy_(torch.cos(n * 0.21 * self.shots))

    def drop(self):
        self.recorded.clear()


def make_engine():
    perception = Perception()
    return SimpleNamespace(
        step=perception.run, vary=perception.shoot, eager=perception.eager, reset=perception.drop
    )
