"""Gradients accumulated over microbatches were wrong after `make_graphed_callables`. The graph of the
backward pass returns its static buffers as parameter gradients, and autograd keeps the first one as `.grad`
without a copy. The next replay overwrites it, and the sum is twice the last gradient. PyTorch has the same
in pytorch#181723. The repair returns clones of parameter gradients.
"""

from types import SimpleNamespace

import torch

PROJECT = "TransformerEngine"
LINK = "https://github.com/NVIDIA/TransformerEngine/pull/2937"
MECHANISM = "overwritten-output"
CAUSE = "static_grad"
LINE = "grad = static_grad.clone() if fixed else static_grad"
EXECUTORS = ("emulated", "cuda")

ROWS, COLUMNS = 3, 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    inputs = torch.ones(ROWS, COLUMNS, device=device)
    grad_outputs = torch.arange(1.0, ROWS + 1, device=device)[:, None]
    parameter = SimpleNamespace(grad=None, returned=None)
    microbatches: list[int] = []

    def backward() -> torch.Tensor:
        parameter.returned = (grad_outputs * inputs).sum(0)
        return parameter.returned

    def accumulate() -> None:
        """What the wrapper returns, and what autograd makes of it."""
        static_grad = parameter.returned
        grad = static_grad.clone() if fixed else static_grad
        parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def vary() -> None:
        if microbatches:
            accumulate()
        microbatches.append(len(microbatches))
        inputs.add_(len(microbatches))

    def finish() -> torch.Tensor:
        accumulate()
        return parameter.grad

    return SimpleNamespace(step=backward, vary=vary, finish=finish, parameter=parameter)
