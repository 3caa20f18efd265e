"""Captured in prefill mode, used in decode mode, which launches another kernel."""

import enum

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["decode_kernel", "mode"]


class Mode(enum.Enum):
    PREFILL = 0
    DECODE = 1


@triton.jit
def prefill_kernel(x_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o_ptr + i, tl.load(x_ptr + i) + 1.0)


@triton.jit
def decode_kernel(x_ptr, o_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(o_ptr + i, tl.load(x_ptr + i) - 1.0)


class Attention:
    def __init__(self):
        self.mode = Mode.PREFILL
        self.x = torch.arange(16.0, device=DEVICE)
        self.o = torch.zeros(16, device=DEVICE)

    def run(self):
        if self.mode is Mode.PREFILL:  # HERE
            prefill_kernel[(1,)](self.x, self.o, N=16)
        else:
            decode_kernel[(1,)](self.x, self.o, N=16)  # HERE
        return self.o


def make():
    a = Attention()

    def vary():
        a.mode = Mode.DECODE
        a.x.add_(1.0)

    return {"step": a.run, "vary": vary, "reset": None}
