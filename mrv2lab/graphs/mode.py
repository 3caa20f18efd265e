"""What this project's dispatch modes are: torch's, without two things that torch adds to them."""

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_UNDEFINED = torch.empty(0)


class DispatchMode(TorchDispatchMode):
    """Torch keeps its compiler out of `__torch_dispatch__`, and imports it for that at the first op.

    The import takes as long as that of torch, in every process that captures. Where nobody else has imported
    the compiler, there is none to keep out.

    An op may leave tensors of a list undefined: FlashAttention-3's `fwd` returns `Tensor[]`, and the last two
    are, if it splits nothing. Python sees None for each, and torch does not take the same list back from a
    mode, so that a step which works without one would fail. It gets tensors without elements instead.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = cls.__torch_dispatch__
        super().__init_subclass__(**kwargs)
        kept_out = cls.__torch_dispatch__

        @functools.wraps(plain)
        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            __tracebackhide__ = True  # an error belongs to the line that asked for the op
            is_imported = hasattr(sys.modules.get("torch._dynamo"), "disable")  # so far, if that goes on
            result = (kept_out if is_imported else plain)(self, func, types, args, kwargs)
            if isinstance(result, list) and any(r is None for r in result):
                return [_UNDEFINED if r is None else r for r in result]
            return result

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
