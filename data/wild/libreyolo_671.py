"""Training with graphs drifted from eager training, in validation and in what was saved, as soon as a shape
of batches came again. The shape is captured then, and the capture first runs some forward passes on the
network that is being trained; each moves the running statistics of its batch norms once more, where an eager
step moves them once. Repaired by keeping a copy of all buffers and putting it back before the first replay.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "LibreYOLO"
LINK = "https://github.com/LibreYOLO/libreyolo/pull/671"
MECHANISM = "left-behind"
CAUSE = "running_mean"
LINE = "network.forward(static_input)"
EXECUTORS = ("emulated", "cuda")

CHANNELS, NUM_WARMUP_ITERS, MOMENTUM = 3, 3, 0.1


class ConvBlock:
    """Scale and batch norm, in training."""

    def __init__(self, device: torch.device):
        self.weight = torch.linspace(0.5, 1.5, CHANNELS, device=device)
        self.running_mean, self.running_var = torch.zeros_like(self.weight), torch.ones_like(self.weight)
        self.buffers = self.running_mean, self.running_var

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, var = (x := x * self.weight).mean(0), x.var(0)
        self.running_mean.lerp_(mean, MOMENTUM)
        self.running_var.lerp_(var, MOMENTUM)
        return (x - mean) / (var + 1e-3).sqrt()


class TrainGraphManager:
    """Forward passes of shapes that have been seen before come from a graph."""

    def __init__(self, fixed: bool, network: ConvBlock, device: torch.device):
        self.fixed, self.network, self.enabled = fixed, network, True
        self.backend, self.seen, self.graphed = device.type.replace("cpu", "emulated"), set(), {}

    def capture(self, batch: torch.Tensor) -> None:
        network, static_input = self.network, batch.clone()
        kept = [buffer.clone() for buffer in network.buffers]
        for _ in range(NUM_WARMUP_ITERS):
            network.forward(static_input)
        graph = capture(lambda: network.forward(static_input), backend=self.backend)
        if self.fixed:
            for buffer, value in zip(network.buffers, kept, strict=True):
                buffer.copy_(value)
        self.graphed[batch.shape] = graph, static_input

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if self.enabled and batch.shape in self.seen and batch.shape not in self.graphed:
            self.capture(batch)
        self.seen.add(batch.shape)
        if batch.shape not in self.graphed:
            return self.network.forward(batch)
        graph, static_input = self.graphed[batch.shape]
        static_input.copy_(batch)
        graph.replay()
        return graph.outputs


class Trainer:
    def __init__(self, fixed: bool, device: torch.device):
        self.network = ConvBlock(device)
        self.manager = TrainGraphManager(fixed, self.network, device)
        self.batch = torch.arange(4.0 * CHANNELS, device=device).view(4, CHANNELS)

    def train_step(self) -> tuple[torch.Tensor, ...]:
        loss = (self.manager.forward(self.batch) - 0.5).square().mean()
        self.network.weight.sub_(0.01 * loss)
        return loss, self.network.running_mean, self.network.running_var


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    trainer, steps = Trainer(fixed, device), count(1)

    def eager() -> tuple[torch.Tensor, ...]:
        trainer.manager.enabled = False
        return trainer.train_step()

    def vary() -> None:
        rows = torch.arange(4 * CHANNELS, device=device).view(4, CHANNELS)
        trainer.batch.copy_(torch.sin(rows * next(steps) * 1.0) + 1)

    return SimpleNamespace(step=trainer.train_step, eager=eager, own_graphs=True, vary=vary, trainer=trainer)
