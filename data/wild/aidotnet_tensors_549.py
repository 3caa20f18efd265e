"""As a review found, a training plan would go on with its former optimizer, on memory that had been freed,
after another one had been configured. The whole step is captured once it has run a few times. Configuring an
optimizer frees the buffers of its state and puts another update in place, but the captured step was kept
until the plan was disposed of. Repaired by destroying the graph wherever state is freed or replaced, and
counting the warm-up anew.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "AiDotNet.Tensors"
LINK = "https://github.com/ooples/AiDotNet.Tensors/pull/549"
MECHANISM = "moved-address"
CAUSE = "self.optimizer_buffers"
LINE = "self.optimizer_buffers = [torch.zeros_like(self.parameter) for _ in range(slots)]"
EXECUTORS = ("emulated", "cuda")

FEATURES, BATCH, WARMUP = 4, 3, 2


def momentum(parameter: torch.Tensor, grad: torch.Tensor, buffers: list[torch.Tensor], lr: float) -> None:
    velocity = buffers[0].mul_(0.9).add_(grad)
    parameter.sub_(velocity * lr)


def rmsprop(parameter: torch.Tensor, grad: torch.Tensor, buffers: list[torch.Tensor], lr: float) -> None:
    mean, square = buffers
    mean.mul_(0.9).add_(grad * 0.1)
    square.mul_(0.99).add_(grad**2 * 0.01)
    parameter.sub_(lr * mean / (square.sqrt() + 1e-2))


class CompiledTrainingPlan:
    """A linear model with its loss, gradient and optimizer, compiled into one step."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.parameter = torch.linspace(-0.5, 0.5, FEATURES, device=device)
        self.inputs = torch.ones(BATCH, FEATURES, device=device)
        self.targets = torch.ones(BATCH, device=device)
        self.step_graph, self.step_graph_calls = None, 0
        self.configure_optimizer(momentum, slots=1, lr=0.1)

    def configure_optimizer(self, update: Callable, slots: int, lr: float) -> None:
        self.optimizer_buffers = [torch.zeros_like(self.parameter) for _ in range(slots)]
        self.optimizer_update, self.lr = update, lr
        if self.fixed:
            self.invalidate_captured_step_graph()

    def invalidate_captured_step_graph(self) -> None:
        self.step_graph, self.step_graph_calls = None, 0

    def step_body(self) -> torch.Tensor:
        error = self.inputs @ self.parameter - self.targets
        grad = 2 * error @ self.inputs / BATCH
        self.optimizer_update(self.parameter, grad, self.optimizer_buffers, self.lr)
        return (error**2).mean()

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.step_graph_calls += 1
        if self.step_graph_calls <= WARMUP:
            return self.step_body(), self.parameter
        if self.step_graph is None:
            self.step_graph = capture(self.step_body, backend=self.backend)
        self.step_graph.replay()
        return self.step_graph.outputs, self.parameter


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    plan, data = CompiledTrainingPlan(fixed, device), torch.Generator().manual_seed(0)
    epochs = iter(range(1, 9))

    def vary() -> None:
        if next(epochs) == 4:
            plan.configure_optimizer(rmsprop, slots=2, lr=0.05)
        plan.inputs.copy_(torch.rand(BATCH, FEATURES, generator=data))
        plan.targets.copy_(torch.rand(BATCH, generator=data))

    def eager() -> tuple[torch.Tensor, torch.Tensor]:
        return plan.step_body(), plan.parameter

    return SimpleNamespace(step=plan.step, eager=eager, own_graphs=True, vary=vary, requests=8, plan=plan)
