"""Llama under `torch.compile` became four times slower, with one line in the log: "skipping cudagraphs due
to mutated inputs". Since modules are inlined, the key and value caches that they own are inputs of the
compiled graph. A graph whose inputs are written is not captured unless these are static, and only parameters
and buffers were known to be. Right is to count all tensors of modules as static, as the thread proposes.
"""

from types import SimpleNamespace
from typing import Any

import torch

from mrv2lab import graphs

PROJECT = "PyTorch"
LINK = "https://github.com/pytorch/pytorch/issues/132714"
MECHANISM = "silent-eager"
SYMPTOM = "speed"
CAUSE = "mutated"
LINE = "if mutated - static:"
EXECUTORS = ("emulated", "cuda")

ROWS, POSITIONS = 2, 8


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend: Any = "cuda" if device.type == "cuda" else "emulated"
    inputs = {
        "weight": torch.full((ROWS,), 2.0, device=device),
        "cache": torch.zeros(ROWS, POSITIONS, device=device),
        "position": torch.zeros((), dtype=torch.int64, device=device),
        "x": torch.ones(ROWS, device=device),
    }
    parameters, of_modules, mutated = {"weight"}, {"weight", "cache"}, {"cache"}
    captured: list[graphs.CapturedGraph] = []

    def forward() -> torch.Tensor:
        key = inputs["x"] * inputs["weight"]
        is_now = torch.arange(POSITIONS, device=device) == inputs["position"]
        inputs["cache"].copy_(torch.where(is_now, key[:, None], inputs["cache"]))
        return inputs["cache"].sum(1)

    def compiled() -> torch.Tensor:
        static = of_modules if fixed else parameters
        if mutated - static:
            return forward()
        if not captured:
            forward()
            captured.append(graphs.capture(forward, backend=backend))
        captured[0].replay()
        return captured[0].outputs

    def vary() -> None:
        inputs["position"].add_(1).remainder_(POSITIONS)
        inputs["x"].add_(1)

    return SimpleNamespace(step=compiled, own_graphs=True, eager=forward, vary=vary, inputs=inputs)
