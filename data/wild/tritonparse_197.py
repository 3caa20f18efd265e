"""Benchmarks that capture a kernel failed as soon as its launches were traced: "operation not permitted
when stream is capturing". For each launch the tracer notes its arguments, among other things as text, and
the text of a tensor holds its values, for which the host waits. Proposed repair: no details of arguments
while a graph is captured.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import is_capturing

PROJECT = "tritonparse"
LINK = "https://github.com/meta-pytorch/tritonparse/pull/197"
MECHANISM = "host-sync"
CAUSE = "str(argument)"
LINE = "return {name: str(argument) for name, argument in arguments.items()}"
EXECUTORS = ("emulated", "cuda")

SIZE = 6


def extract_arg_info(arguments: dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: str(argument) for name, argument in arguments.items()}


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    x, y = (torch.linspace(0, 1, SIZE, device=device) for _ in range(2))
    trace: list[dict[str, str]] = []

    def add_launch_metadata(**arguments: torch.Tensor) -> None:
        if fixed and is_capturing():
            trace.append({})
        else:
            trace.append(extract_arg_info(arguments))

    def launch() -> torch.Tensor:
        add_launch_metadata(x=x, y=y)
        return x * y + 1

    def vary() -> None:
        x.add_(1)
        y.mul_(0.5)

    return SimpleNamespace(step=launch, vary=vary, trace=trace)
