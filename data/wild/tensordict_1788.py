"""`CudaGraphModule` ignored one of its inputs: a recurrent module that writes its new state under the key of
the old one gave the same answer for any state. In the capture the module rebinds the entry of the static
inputs to its result. Later states are copied into that tensor, which the replay then overwrites, while its
kernels read the original. The repair keeps the inputs bound to what the capture reads.
"""

from itertools import count
from types import SimpleNamespace

import torch

PROJECT = "tensordict"
LINK = "https://github.com/pytorch/tensordict/pull/1788"
MECHANISM = "stale-input"
CAUSE = 'static["h"]'
LINE = 'static["h"] = h'
EXECUTORS = ("emulated", "cuda")

ROWS = 4


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    static = {"x": torch.ones(ROWS, device=device), "h": torch.zeros(ROWS, device=device)}
    inputs = dict(static)
    states = count(1)

    def recurrent() -> torch.Tensor:
        h = torch.tanh(inputs["h"] + inputs["x"])
        if not fixed:
            static["h"] = h
        return h * 2

    def vary() -> None:
        static["h"].fill_(0.25 * next(states))

    return SimpleNamespace(step=recurrent, vary=vary, static=static)
