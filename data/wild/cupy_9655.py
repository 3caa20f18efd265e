"""A captured `A = A * 2` was right at its first launch and garbage at its second, where the reporter
expected four times the array. The statement makes a new array and binds the name to it; the old one, which
the graph goes on reading, belongs to nobody any more and is given away. Right is to multiply in place.
"""

from types import SimpleNamespace

import torch

PROJECT = "CuPy"
LINK = "https://github.com/cupy/cupy/issues/9655"
MECHANISM = "left-behind"
CAUSE = "names.A"
LINE = "names.A = names.A * 2"
EXECUTORS = ("emulated", "cuda")

SIZE = 6


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    names = SimpleNamespace(A=torch.arange(1.0, SIZE + 1, device=device))

    def step() -> torch.Tensor:
        if fixed:
            names.A.mul_(2)
        else:
            names.A = names.A * 2
        return names.A

    def vary() -> None:
        names.A.add_(1)

    return SimpleNamespace(step=step, vary=vary, names=names)
