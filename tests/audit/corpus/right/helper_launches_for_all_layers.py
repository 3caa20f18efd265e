"""One helper in another class launches for every layer; its statistics of launches grow."""

from collections import Counter

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@DualKernel
def scale_kernel(h_ptr, w_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(h_ptr + i, tl.load(h_ptr + i) * tl.load(w_ptr + i))


class Dispatcher:
    def __init__(self):
        self.launches, self.last_shapes = Counter(), {}

    def __call__(self, kernel, *tensors, grid=(1,), **meta):
        self.launches[kernel.__name__] += 1
        self.last_shapes[kernel.__name__] = [tuple(t.shape) for t in tensors]
        return kernel[grid](*tensors, **meta)


class Model:
    def __init__(self, dispatch):
        torch.manual_seed(0)
        self.dispatch = dispatch
        self.x, self.weights = torch.randn(8, device=DEVICE), torch.rand(3, 8, device=DEVICE)

    def forward(self):
        h = self.x.clone()
        for w in self.weights:
            self.dispatch(scale_kernel, h, w, BLOCK=8)
        return h


def make():
    model = Model(Dispatcher())
    return {"step": model.forward, "vary": lambda: model.x.add_(1), "reset": None}
