"""Told by turboquant-vllm's authors, and made a rule for fak: layers with different quantization corrupted
each other's replays. The constants of a layer are uploaded to one place before its kernel; the host skips
the upload if the values are those of the last one. Skipped while a graph is captured, it is no node of it,
and the replay computes with what another layer has left there. Repaired by uploading each time.
"""

from types import SimpleNamespace

import torch

PROJECT = "turboquant-vllm"
LINK = "https://github.com/anthony-chaudhary/fak/issues/10716"
MECHANISM = "lost-kernel"
CAUSE = "self.last"
LINE = "if scale != self.last:"
EXECUTORS = ("emulated", "cuda")

ROWS = 4


class Dequantizer:
    """Constant memory of a kernel."""

    def __init__(self, device: torch.device):
        self.last: float | None = None
        self.constant = torch.zeros(1, device=device)

    def upload(self, scale: float) -> None:
        if scale != self.last:
            self.constant.fill_(scale)
            self.last = scale

    def layer(self, scale: float, quantized: torch.Tensor) -> torch.Tensor:
        self.upload(scale)
        return quantized * self.constant


class FixedDequantizer(Dequantizer):
    """Uploads for each launch."""

    def upload(self, scale: float) -> None:
        self.constant.fill_(scale)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    dequantizer = FixedDequantizer(device) if fixed else Dequantizer(device)
    numbers = torch.Generator().manual_seed(0)
    quantized = torch.ones(ROWS, device=device)

    def vary() -> None:
        dequantizer.layer(0.25, quantized)  # another layer runs eagerly, with fewer bits
        quantized.copy_(torch.randint(-8, 8, (ROWS,), generator=numbers))

    return SimpleNamespace(step=lambda: dequantizer.layer(0.5, quantized), vary=vary, dequantizer=dequantizer)
