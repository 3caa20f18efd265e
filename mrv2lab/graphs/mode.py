"""What this project's dispatch modes are: torch's, without the import of its compiler."""

import functools
import sys
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """Torch keeps its compiler out of `__torch_dispatch__`, and imports it for that at the first op.

    The import takes as long as that of torch, in every process that captures. Where nobody else has imported
    the compiler, there is none to keep out.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        plain = cls.__torch_dispatch__
        super().__init_subclass__(**kwargs)
        kept_out = cls.__torch_dispatch__

        @functools.wraps(plain)
        def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_imported = hasattr(sys.modules.get("torch._dynamo"), "disable")  # so far, if that goes on
            return (kept_out if is_imported else plain)(self, func, types, args, kwargs)

        cls.__torch_dispatch__ = dispatch  # type: ignore[method-assign]
