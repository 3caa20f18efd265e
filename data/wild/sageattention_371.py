"""A Wan2.1 forward in a CUDA graph was wrong by 80 % and seemed 2.3 times faster. The sm90 and the
quantization kernels were launched without naming a stream, so on the legacy default stream, which no capture
records: the graph holds everything but attention, and its replays return what lies in the output buffer. The
repair launches on PyTorch's current stream.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import _disable_current_modes

PROJECT = "SageAttention"
LINK = "https://github.com/thu-ml/SageAttention/pull/371"
MECHANISM = "lost-kernel"
CAUSE = "on_legacy_stream"
LINE = "on_legacy_stream(kernel, device)"
EXECUTORS = ("emulated", "cuda")

ROWS, DIM = 4, 8


def on_legacy_stream(kernel: Callable[[], object], device: torch.device) -> None:
    """A launch that no capture sees, as of C++ with `<<<grid, block>>>`. A CPU has no streams."""
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.default_stream()):
            kernel()
    else:
        with _disable_current_modes():
            kernel()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    query = torch.ones(ROWS, DIM, device=device)
    key = torch.arange(1.0, DIM + 1, device=device)
    scores = torch.zeros(ROWS, DIM, device=device)

    def forward() -> torch.Tensor:
        def kernel() -> torch.Tensor:
            return torch.mul(query, key, out=scores)

        if fixed:
            kernel()
        else:
            on_legacy_stream(kernel, device)
        return scores.sum(1) + query[:, 0]

    return SimpleNamespace(step=forward, vary=lambda: query.add_(1))
