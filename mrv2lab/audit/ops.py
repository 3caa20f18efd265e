"""What an op says of itself, and the mode that hands every op of a pass to whoever watches it."""

import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch._library.custom_ops import OPDEF_TO_LIB
from torch._ops import HigherOrderOperator

from mrv2lab.audit.atoms import host_values
from mrv2lab.audit.lines import MONITORS
from mrv2lab.audit.memory import storage_of
from mrv2lab.graphs.guard import _SYNCHRONISING_TAGS as SYNCHRONISING_TAGS
from mrv2lab.graphs.guard import is_view, makes_tensors
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.graphs.python_ops import _DEFAULTS, _registered_as, is_python_op, opened

if TYPE_CHECKING:
    from mrv2lab.audit.recorder import Recorder

_ALLOCATES = ("aten.empty", "aten.new_empty")  # these hand out memory and write nothing
_NO_WORK = {"aten.detach", "aten.alias", "aten.lift_fresh", "aten.lift"}
# What these compute from a garbage index is a garbage index; a mask or a clamp would make it a good one.
_KEEPING = ("add", "sub", "rsub", "mul", "neg", "_to_copy", "clone", "copy")
_KEEPS_GARBAGE = {f"aten.{name}" for name in _KEEPING}

# These write, and their schemas do not say so.
_STATISTICS = ("running_mean", "running_var")
_WRITES = {f"aten.{name}": _STATISTICS for name in ("native_batch_norm", "cudnn_batch_norm")}


class Ops(DispatchMode):
    """Hands every op to the recorder that watches: outside of captures, or inside of them.

    Not only inside of the one it was made for: where one capture ends inside an op and the next begins, torch
    puts this mode back where the next one's was.
    """

    supports_higher_order_operators = True

    def __init__(self, watcher: "Recorder", in_capture: bool):
        super().__init__()
        self.watcher, self.in_capture = watcher, in_capture

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watcher = self.watcher
        is_here = watcher.in_capture is self.in_capture
        if not is_here or watcher.quiet or isinstance(func, HigherOrderOperator) or is_traced():
            return func(*args, **kwargs)
        if MONITORS:
            return self._dispatch(func, args, kwargs)
        # Below here runs torch's Python, hundreds of calls for an op and none of them the user's.
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return self._dispatch(func, args, kwargs)
        finally:
            sys.settrace(tracer)

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        # Of nearly all ops it is told at once that they are not Python's.
        may_be = func.name() in OPDEF_TO_LIB or not _notes(func).isdisjoint(torch.library._impls)
        if may_be and is_python_op(func, args, kwargs):
            return self.watcher.on_python_op(self, func, args, kwargs)
        if schema_of(func).is_composite:  # inference mode hands over whole composites: look at their ops
            result = opened(self, func, args, kwargs)
            if result is not NotImplemented:
                return result
        return self.watcher.on_op(func, args, kwargs)


def is_traced() -> bool:
    """Whether a compiler is at work: its tensors are fake, and its ops do nothing."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


@functools.cache
def _notes(func: Any) -> set[str]:
    """Whatever torch may note of kernels of an op that came from Python."""
    return set().union(*(_registered_as(func, key) for key in ("CPU", "CUDA", *_DEFAULTS)))


class Schema(NamedTuple):
    """What an op says of itself."""

    name: str  # `aten.mm`
    sort: Literal["op", "view", "alloc"]  # as in `Event`
    parameters: tuple[tuple[str, bool, Any], ...]  # each, whether it is written, and its default
    indexes: frozenset[str]  # parameters that address memory
    is_opaque: bool  # not of torch; what it does with its integers nobody can tell
    is_composite: bool  # made of other ops
    is_random: bool  # may draw random numbers
    is_update: bool  # works element by element on what it writes, so that garbage stays garbage
    keeps_garbage: bool  # as `_KEEPS_GARBAGE` says, in place or not
    is_hosts: bool  # no tensor comes out of it, so without tensors to work on it does nothing on the device
    waits: bool  # the host has to know what it computes
    writes: bool  # one of its parameters at least
    is_pure: bool  # what it returns is new memory


@functools.cache
def schema_of(func: Any) -> Schema:
    arguments = func._schema.arguments
    name = func._schema.name.replace("::", ".")
    written = _WRITES.get(name, ())
    parameters = tuple(
        (a.name, a.name in written or (a.alias_info is not None and a.alias_info.is_write), a.default_value)
        for a in arguments
    )
    does_nothing = is_view(func) or name in _NO_WORK
    is_aten, aliases = func.namespace == "aten", any(a.alias_info is not None for a in arguments)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return Schema(
        name,
        "alloc" if name.startswith(_ALLOCATES) else "view" if does_nothing else "op",
        parameters,
        frozenset({a.name for a in arguments} & {"index", "indices"}),
        func.namespace not in ("aten", "prim", "prims"),
        is_composite := is_aten and bool(has_kernel(func.name(), "CompositeImplicitAutograd")),
        torch.Tag.nondeterministic_seeded in func.tags,
        torch.Tag.pointwise in func.tags and bool(parameters) and parameters[0][1],
        name.removesuffix("_") in _KEEPS_GARBAGE,
        not makes_tensors(func),
        not SYNCHRONISING_TAGS.isdisjoint(func.tags),
        any(is_written for _, is_written, _ in parameters),
        is_aten and not (is_composite or does_nothing or aliases),
    )


def draws(scalars: list[tuple[str, Any]]) -> bool:
    """Whether an op uses the random numbers that it may draw: dropout that drops nothing does not."""
    return next((bool(value) for label, value in scalars if label in ("p", "dropout_p", "dropout")), True)


class Given(NamedTuple):
    """A tensor among the arguments of an op or a launch."""

    label: str
    tensor: torch.Tensor
    written: bool
    storage: int


def arguments_of(schema: Schema, args: Any, kwargs: Any) -> tuple[list[tuple[str, Any]], list[Given]]:
    scalars: list[tuple[str, Any]] = []
    tensors: list[Given] = []
    for i, (label, written, default) in enumerate(schema.parameters):
        value = args[i] if i < len(args) else kwargs.get(label, default)
        sort_argument(label, value, written, scalars, tensors)
    return scalars, tensors


def holding(schema: Schema, args: Any, kwargs: Any, held: Mapping[str, Any]) -> tuple[Any, Any]:
    """The same arguments, with other host values where labels of `arguments_of` are held."""
    args, kwargs = list(args), dict(kwargs)
    for i, (label, _, _) in enumerate(schema.parameters):
        if i < len(args):
            args[i] = _held(label, args[i], held)
        elif label in kwargs or label in held:
            kwargs[label] = _held(label, kwargs.get(label), held)
    return args, kwargs


def _held(label: str, value: Any, held: Mapping[str, Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_held(f"{label}[{i}]", item, held) for i, item in enumerate(value))
    return held.get(label, value)


def sort_argument(label: str, value: Any, written: bool, scalars: Any, tensors: Any) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append(Given(label, value, written, storage_of(value)))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            sort_argument(f"{label}[{i}]", item, written, scalars, tensors)
    elif value is None or isinstance(value, int | float | str | bool | complex | torch.dtype):
        scalars.append((label, value))


# On a GPU an index beyond what these look into is an assertion, and the end of the process.
_LOOKING_INTO = (
    "gather", "scatter", "scatter_add", "scatter_reduce", "index", "index_put", "_index_put_impl",
    "_unsafe_index", "index_select", "index_copy", "index_add", "index_fill", "index_reduce", "take", "put",
    "embedding",
)  # fmt: skip
_ASSERTING = {f"aten.{name}" for name in _LOOKING_INTO}


def beyond(schema: Schema, scalars: list[tuple[str, Any]], tensors: list[Given]) -> str | None:
    """Words for an index that leads out of what an op looks into; the host waits for it."""
    given, by_label = dict(scalars), {one.label: one.tensor for one in tensors}
    looked_into = by_label.get("self", by_label.get("weight"))
    if schema.name.removesuffix("_") not in _ASSERTING or looked_into is None:
        return None
    for label, index in by_label.items():
        name, _, number = label.partition("[")
        if name not in schema.indexes or index.dtype is torch.bool or not index.numel():
            continue
        dim = int(number[:-1]) if number else 0 if name == "indices" else given.get("dim")
        sizes = looked_into.shape or (1,)
        size = looked_into.numel() if dim is None else sizes[dim]
        low, high = (int(value) for value in index.aminmax())
        if high >= size or low < (-size if number or dim is None else 0):
            return f"{schema.name} looks for number {high if high >= size else low} of {size}"
    return None


def few_values(tensor: torch.Tensor) -> Any:
    """The elements of a small tensor in host memory, for comparison; of a number the number."""
    values = host_values(tensor)
    if values is None or tensor.dim() == 0:
        return values and values[0]
    return tuple(values)
