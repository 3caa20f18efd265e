"""Memory protection for interpreted kernels: what a GPU reports as an illegal memory access.

Triton's interpreter reads and writes raw addresses, so a wild index gives garbage or ends the process.
Here every access of a kernel must lie in the memory of a tensor it was given.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import interpreter_builder

from mrv2lab.errors import IllegalAccess
from mrv2lab.graphs.guard import tensors_in


@contextmanager
def memory_protection(kernel_name: str, arguments: Any) -> Iterator[None]:
    """Within this context interpreted loads and stores are checked against the tensors in `arguments`.

    Raises:
        IllegalAccess: an access outside of them; names the kernel.
    """
    __tracebackhide__ = True
    storages = [tensor.untyped_storage() for tensor in tensors_in(arguments)]
    allowed = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]
    builder = interpreter_builder
    load, store = type(builder).create_masked_load, type(builder).create_masked_store

    def check(what: str, pointers: Any, mask: Any) -> None:
        __tracebackhide__ = True
        addresses = pointers.data[mask.data]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        inside = np.zeros(addresses.shape, dtype=bool)
        for first, end in allowed:
            inside |= (addresses >= np.uint64(first)) & (addresses + np.uint64(size) <= np.uint64(end))
        if not inside.all():
            outside = np.count_nonzero(~inside)
            raise IllegalAccess(
                f"an illegal memory access was encountered: {kernel_name} {what} "
                f"{outside} {'address' if outside == 1 else 'addresses'} outside the tensors it was given"
            )

    def checked_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        __tracebackhide__ = True
        check("reads", pointers, mask)
        return load(builder, pointers, mask, *rest)

    def checked_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        __tracebackhide__ = True
        check("writes", pointers, mask)
        return store(builder, pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        yield
    except InterpreterError as error:  # the interpreter wraps whatever a kernel raises
        if isinstance(error.__cause__, IllegalAccess):
            raise error.__cause__ from None
        raise
    finally:
        del builder.create_masked_load, builder.create_masked_store
