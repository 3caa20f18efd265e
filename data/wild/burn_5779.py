"""A training step in a CUDA graph trained on wrong values with any optimizer but plain SGD at a constant
rate, and nothing said so. The learning rate of the schedule and the step count of Adam's bias correction are
host scalars, which become kernel arguments: a replay goes on with those of the capture. Right are scalars in
device memory, written before each replay.
"""

from types import SimpleNamespace

import torch

PROJECT = "burn"
LINK = "https://github.com/tracel-ai/burn/issues/5779"
MECHANISM = "frozen-host-value"
CAUSE = "schedule.lr"
LINE = "lr = lr_tensor if fixed else schedule.lr"
EXECUTORS = ("emulated", "cuda")

SIZE = 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    weight = torch.arange(1.0, SIZE + 1, device=device)
    grad = torch.ones(SIZE, device=device)
    schedule = SimpleNamespace(lr=0.5)
    lr_tensor = torch.full((), schedule.lr, device=device)

    def optimizer_step() -> torch.Tensor:
        lr = lr_tensor if fixed else schedule.lr
        return weight - lr * grad

    def vary() -> None:
        schedule.lr *= 0.5
        lr_tensor.fill_(schedule.lr)
        grad.add_(1)

    return SimpleNamespace(step=optimizer_step, vary=vary, schedule=schedule)
