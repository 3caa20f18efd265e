"""A module that was graphed without caching of quantized weights trained on a stale weight, if another one
had been graphed with caching before. Caching makes a flag on the device, which tells the quantize kernel
whether to write, and keeps it for the whole process. A later capture finds it there, takes the cached path
and bakes the flag in, but only modules with caching ever write it. The repair scopes the flag to the capture
that asked for it.
"""

from types import SimpleNamespace

import torch

PROJECT = "TransformerEngine"
LINK = "https://github.com/NVIDIA/TransformerEngine/pull/3298"
MECHANISM = "cross-capture"
CAUSE = "skip_fp8_weight_update_tensor"
LINE = "flag = state.skip_fp8_weight_update_tensor if cache or not self.fixed else None"
EXECUTORS = ("emulated", "cuda")

SIZE = 4


class Linear:
    """A layer that multiplies with a quantized copy of its weight."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed = fixed
        self.weight = torch.arange(1.0, SIZE + 1, device=device)
        self.workspace = self.weight.round()

    def forward(self, state: SimpleNamespace, inputs: torch.Tensor, cache: bool) -> torch.Tensor:
        flag = state.skip_fp8_weight_update_tensor if cache or not self.fixed else None
        quantized = self.weight.round()
        if flag is not None:  # the kernel is launched, and writes unless the flag is set
            self.workspace.copy_(torch.where(flag > 0, self.workspace, quantized))
            quantized = self.workspace
        return inputs * quantized


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    state = SimpleNamespace(skip_fp8_weight_update_tensor=None)  # of the process
    cached, plain = Linear(fixed, device), Linear(fixed, device)
    inputs = torch.ones(SIZE, device=device)

    def capture_cached() -> torch.Tensor:
        if state.skip_fp8_weight_update_tensor is None:
            state.skip_fp8_weight_update_tensor = torch.zeros(1, device=device)
        return cached.forward(state, inputs, cache=True)

    def vary() -> None:
        if state.skip_fp8_weight_update_tensor is not None:
            state.skip_fp8_weight_update_tensor.fill_(1)  # the cached module is past its first microbatch
        plain.weight.add_(3)  # the optimizer

    return SimpleNamespace(
        step=lambda: plain.forward(state, inputs, cache=False),
        vary=vary,
        beside=[("before", capture_cached)],
        layers=[cached, plain],
        state=state,
    )
