"""An expert that no token had reached while the optimizer warmed up was never trained, without an error. The
step leaves out parameters that have no gradient yet, a choice of the host, and the captured step leaves the
same ones out for the rest of the run. Repaired: capture refuses as long as there is such a parameter. Here
the wrapper then goes on eagerly, where the original raises and asks for more steps of warm-up.
"""

from itertools import chain, repeat
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "dion"
LINK = "https://github.com/microsoft/dion/pull/108"
MECHANISM = "frozen-host-value"
CAUSE = "param.grad"
LINE = "if param.grad is None:"
EXECUTORS = ("emulated", "cuda")

EXPERTS, HIDDEN, LR, MU = 3, 4, 0.1, 0.9


class NorDion2:
    """Momentum, normalized for each matrix."""

    def __init__(self, params: list[torch.Tensor]):
        self.params, self.state = params, {}

    def zero_grad(self) -> None:
        for param in self.params:
            if param.grad is not None:
                param.grad.zero_()

    def step(self) -> list[torch.Tensor]:
        for index, param in enumerate(self.params):
            if param.grad is None:
                continue
            if index not in self.state:
                self.state[index] = torch.zeros_like(param)
            momentum = self.state[index].mul_(MU).add_(param.grad)
            param.sub_(momentum / (momentum.norm() + 1e-3), alpha=LR)
        return self.params


class CudaGraphOptimizer:
    """Runs the step of an optimizer eagerly for a while, then captures and replays it."""

    def __init__(self, fixed: bool, optimizer: NorDion2, backend: str, warmup_steps: int = 1):
        self.fixed, self.optimizer, self.backend = fixed, optimizer, backend
        self.warmup_steps, self.step_count, self.graph = warmup_steps, 0, None

    def step(self) -> list[torch.Tensor]:
        if self.graph is None:
            if self.fixed and any(param.grad is None for param in self.optimizer.params):
                self.step_count = 0
                return self.optimizer.step()
            self.step_count += 1
            if self.step_count <= self.warmup_steps:
                return self.optimizer.step()
            self.graph = capture(self.optimizer.step, backend=self.backend)
        self.graph.replay()
        return self.optimizer.params


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    experts = [torch.full((HIDDEN,), 1.0 + n, device=device) for n in range(EXPERTS)]
    inner = NorDion2(experts)
    optimizer = CudaGraphOptimizer(fixed, inner, "cuda" if device.type == "cuda" else "emulated")
    routed = chain(((0, 1), (1, 0), (0, 1, 2)), repeat((1, 2)))  # to which experts tokens of a batch go
    batches = torch.Generator().manual_seed(0)

    def backward() -> None:
        inner.zero_grad()
        for index in next(routed):
            grad = torch.rand(HIDDEN, generator=batches).to(device)
            param = experts[index]
            param.grad = grad if param.grad is None else param.grad.add_(grad)

    backward()
    return SimpleNamespace(
        step=optimizer.step, eager=inner.step, own_graphs=True, vary=backward, requests=6, optimizer=optimizer
    )
