"""Found with tests of training by graphs: weights were updated with gradients that no backward pass had
filled. `make_graphed_callables` throws away the gradients that its captures leave behind. The captured
backward pass goes on adding to the buffers of then, the optimizer is given new ones. Repaired by leaving
the gradients where they are.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "TransformerEngine"
LINK = "https://github.com/NVIDIA/TransformerEngine/pull/869"
MECHANISM = "moved-address"
CAUSE = "parameter.grad"
LINE = "parameter.grad = None"
EXECUTORS = ("emulated", "cuda")

ROWS, COLUMNS = 4, 3


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = "cuda" if device.type == "cuda" else "emulated"
    inputs = torch.ones(ROWS, COLUMNS, device=device)
    parameter = SimpleNamespace(data=torch.ones(COLUMNS, device=device), grad=None)
    parameter.grad = torch.zeros(COLUMNS, device=device)

    def forward_backward() -> None:
        outputs = torch.tanh(inputs @ parameter.data)
        parameter.grad.add_(((1 - outputs**2)[:, None] * inputs).sum(0))

    def make_graphed_callables():
        forward_backward()  # warms up
        graph = capture(forward_backward, backend=backend)
        if not fixed:
            parameter.grad = None
        return graph.replay

    def train(microbatch) -> torch.Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros(COLUMNS, device=device)
        parameter.grad.zero_()
        microbatch()
        parameter.data.sub_(0.1 * parameter.grad)
        return parameter.data

    def vary() -> None:
        inputs.add_(torch.linspace(-0.2, 0.1, COLUMNS, device=device))

    graphed = make_graphed_callables()
    return SimpleNamespace(
        step=lambda: train(graphed),
        eager=lambda: train(forward_backward),
        own_graphs=True,
        vary=vary,
        parameter=parameter,
    )
