"""The least that a kernel can do, so that what is timed is its launch: nothing at all, or one addition."""

import triton.language as tl

from mrv2lab.kernels.dual import DualKernel


@DualKernel
def empty_kernel(x_ptr, WIDTH: tl.constexpr):
    """Does nothing."""
    pass


@DualKernel
def add_one_kernel(x_ptr, WIDTH: tl.constexpr):
    """Adds one to each element of a row, in one program."""
    offsets = tl.arange(0, WIDTH)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1.0)
