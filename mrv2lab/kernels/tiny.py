"""The least that a kernel can do, so that what is timed is its launch: nothing at all, or one addition."""

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

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


@DualKernel
def add_one_early_kernel(x_ptr, WIDTH: tl.constexpr):
    """As `add_one_kernel`, for programmatic dependent launch (`launch_pdl=True`, from Hopper on): the kernel
    behind it may be launched while it runs, and waits for what it writes."""
    gdc_launch_dependents()
    gdc_wait()
    offsets = tl.arange(0, WIDTH)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets) + 1.0)
