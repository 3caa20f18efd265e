"""What an op says of its arguments at capture: what its results will be, or an error."""

from typing import Any

import torch

from mrv2lab.errors import EmulatorLimit
from mrv2lab.graphs.addresses import over
from mrv2lab.graphs.memory import is_host
from mrv2lab.graphs.nested import each_tensor, once, tensors_in

_REPEATS = torch.ops.aten.repeat_interleave.Tensor
_MOST_BYTES = 1 << 28  # that an op is tried on
_MOST_KNOWN = 1 << 14
_known: dict[Any, Any] = {}


def results_of(func: Any, args: Any, kwargs: Any) -> Any:
    """The results of an op as meta tensors, which have shapes, strides and types, and no data.

    One of torch's own is tried, as it would run at each replay: shape functions let through much that the op
    does not take, like types that do not go together and arguments that overlap. Of others the shape function
    is asked, and of one whose values have to have a certain sum. EmulatorLimit: there is no shape function.
    Exception: what the op raises of its arguments.
    """
    num_bytes = sum(t.untyped_storage().nbytes() for t in tensors_in(args, kwargs))
    if func.namespace != "aten" or func is _REPEATS or not 0 < num_bytes <= _MOST_BYTES:
        return _by_shape_function(func, args, kwargs)
    call = func, torch.get_default_dtype(), *_layout(args, kwargs)
    if call not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        results = _try(func, args, kwargs)
        require_dense(func, tensors_in(results))
        _known[call] = each_tensor(_to_meta, results)
    return _known[call]


def require_dense(func: Any, tensors: list[torch.Tensor]) -> None:
    """Refuse tensors that are more than a shape and strides over memory. EmulatorLimit: names the op and what
    kind of tensor it is.
    """
    with torch._C.DisableTorchFunction():  # no mode has to see these questions
        for t in tensors:
            if t.is_nested or t.is_quantized or t.layout is not torch.strided:
                kind = "nested" if t.is_nested else "quantized" if t.is_quantized else t.layout
                raise EmulatorLimit(
                    f"{func} has a tensor that is {kind}: the emulator records dense ones only"
                )


def _to_meta(t: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="meta")


def _by_shape_function(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = each_tensor(_to_meta, (args, kwargs))
    if any(a.name == "device" for a in func._schema.arguments):
        kwargs["device"] = torch.device("meta")
    try:
        return func(*args, **kwargs)
    except NotImplementedError as error:
        raise EmulatorLimit(f"{func} has no shape function, so the emulator cannot record it") from error


def _try(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an op on memory of its own. Values can be a reason to raise (an index, a divisor): try two."""
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
    try:
        return _run(func, args, kwargs, 0)
    except Exception as error:
        try:
            return _run(func, args, kwargs, 1)
        except Exception:
            raise error from None
    finally:
        if state is not None:
            torch.set_rng_state(state)


def _run(func: Any, args: Any, kwargs: Any, value: int) -> Any:
    memories: dict[int, torch.Tensor] = {}  # what shares memory does so here

    def own(t: torch.Tensor) -> torch.Tensor:
        if is_host(t) and not t.dim():
            return t.clone()
        storage = t.untyped_storage()
        if storage._cdata not in memories:
            memory = memories[storage._cdata] = torch.zeros(storage.nbytes(), dtype=torch.uint8)
            memory[: len(memory) // t.itemsize * t.itemsize].view(t.dtype).fill_(value)
        return over(memories[storage._cdata], t)

    args, kwargs = each_tensor(once(own), (args, kwargs))
    return func(*args, **kwargs)


def _layout(*values: Any) -> tuple[Any, ...]:
    """All that results and errors depend on, but values of tensors."""
    tensors: dict[int, int] = {}  # numbered as they come
    storages: dict[int, int] = {}

    def of(value: Any) -> Any:
        kind = type(value)
        if kind is tuple or kind is list:
            return kind, *map(of, value)
        if kind is dict:
            return kind, *value, *map(of, value.values())
        if not isinstance(value, torch.Tensor):
            return kind, str(value)
        storage = value.untyped_storage()
        where = storages.setdefault(storage._cdata, len(storages)), storage.nbytes(), value.storage_offset()
        return tensors.setdefault(id(value), len(tensors)), value.dtype, value.size(), value.stride(), where

    return (*map(of, values),)
