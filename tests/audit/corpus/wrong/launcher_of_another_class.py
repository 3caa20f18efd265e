"""A launcher object shared by the layers computes grids from its own count of active blocks."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["active", "grid", "relu_kernel"]


@DualKernel
def relu_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o_ptr + i, tl.maximum(tl.load(x_ptr + i), 0.0))


class Launcher:
    def __init__(self, active):
        self._active = active

    @property
    def grid(self):
        return (self._active,)  # HERE

    def launch(self, kernel, *tensors, **meta):
        kernel[self.grid](*tensors, **meta)  # HERE


class Layer:
    def __init__(self, launcher):
        torch.manual_seed(0)
        self.launcher = launcher
        self.x = torch.randn(32, device=DEVICE)

    def __call__(self):
        out = torch.zeros_like(self.x)
        self.launcher.launch(relu_kernel, self.x, out, BLOCK=4)  # HERE
        return out


def make():
    layer = Layer(Launcher(2))

    def vary():
        layer.launcher._active = layer.launcher._active % 6 + 2

    return {"step": layer, "vary": vary, "reset": None}
