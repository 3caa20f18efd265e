"""One kernel source, two executors: Triton's compiler on CUDA tensors, its interpreter on CPU ones."""

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.kernels import interpreter  # noqa: F401, which makes it bearable


class DualKernel:
    """A Triton kernel that looks at its first argument to know where it runs.

    `TRITON_INTERPRET=1` makes this choice for a whole process; here both may be used side by side.
    Kernels must not call the functions of `tl` that are themselves written in Triton (`tl.zeros`,
    `tl.cdiv`): those belong to one executor for the whole process.
    """

    def __init__(self, fn: Callable[..., None]):
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__
        self.compiled = triton.JITFunction(fn)
        self.interpreted = InterpretedFunction(fn)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # an error of a launch belongs to the line that asked for it
            kernel = self.compiled if first.is_cuda else self.interpreted
            return kernel[grid](first, *args, **kwargs)

        return launch
