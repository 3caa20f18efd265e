"""Memory protection for interpreted kernels: what a GPU reports as an illegal memory access.

Triton's interpreter reads and writes raw addresses, so a wild index gives garbage or ends the process.
Here every access of a kernel must lie in the memory of a tensor it was given.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import interpreter_builder

from mrv2lab.errors import IllegalAccess
from mrv2lab.graphs.nested import tensors_in

ACCESSES = {
    "create_masked_load": ("reads", 0, 1),
    "create_masked_store": ("writes", 0, 2),
    "create_atomic_rmw": ("adds to", 1, 3),
    "create_atomic_cas": ("swaps", 0, None),
}
"""Methods of the interpreter's builder that go to memory; all others that do come here."""

_builder_is_ours = threading.RLock()  # the interpreter has one builder for all threads


@contextmanager
def memory_protection(kernel_name: str, arguments: Any) -> Iterator[None]:
    """Within this context what interpreted kernels access is checked against the tensors in `arguments`. One
    kernel at a time: those of other threads wait. IllegalAccess: an access outside of them; names the kernel.
    """
    __tracebackhide__ = True
    storages = [tensor.untyped_storage() for tensor in tensors_in(arguments)]
    allowed = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]
    builder = interpreter_builder

    def check(what: str, pointers: Any, mask: Any) -> None:
        __tracebackhide__ = True
        # A mask of one condition for all lanes and one for each is of integers.
        addresses = np.atleast_1d(pointers.data if mask is None else pointers.data[mask.data.astype(bool)])
        size = pointers.get_element_ty().primitive_bitwidth // 8
        if not addresses.size:
            return
        lowest, behind = int(addresses.min()), int(addresses.max()) + size
        if any(first <= lowest and behind <= end for first, end in allowed):
            return  # mostly: all of them lie in one tensor
        inside = np.zeros(addresses.shape, dtype=bool)
        for first, end in allowed:
            inside |= (addresses >= np.uint64(first)) & (addresses + np.uint64(size) <= np.uint64(end))
        if not inside.all():
            outside = np.count_nonzero(~inside)
            raise IllegalAccess(
                f"an illegal memory access was encountered: {kernel_name} {what} "
                f"{outside} {'address' if outside == 1 else 'addresses'} outside the tensors it was given"
            )

    def checked(method: str, what: str, pointers: int, mask: int | None) -> Any:
        """A method of the builder that looks first; where in its arguments pointers and mask stand."""
        access = getattr(type(builder), method)

        def checked_access(*args: Any) -> Any:
            __tracebackhide__ = True
            check(what, args[pointers], None if mask is None else args[mask])
            return access(builder, *args)

        return checked_access

    with _builder_is_ours:
        for method, where in ACCESSES.items():
            setattr(builder, method, checked(method, *where))
        try:
            yield
        except InterpreterError as error:  # the interpreter wraps whatever a kernel raises
            if isinstance(error.__cause__, IllegalAccess):
                raise error.__cause__ from None
            raise
        finally:
            for method in ACCESSES:
                delattr(builder, method)
