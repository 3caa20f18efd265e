"""host-sync: the step makes the host wait for the device, which no graph can hold."""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from traceback import walk_tb
from types import CodeType
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.audit.atoms import statements_at
from mrv2lab.audit.lines import users_frame, users_running
from mrv2lab.audit.order import WAITS, patched
from mrv2lab.audit.passes import Passes
from mrv2lab.audit.recorder import Recorder
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.writers import UnwrittenIndex
from mrv2lab.errors import HostSyncError
from mrv2lab.graphs import cuda, emulated
from mrv2lab.graphs.guard import Memory, _MethodGuard, _OpGuard, is_mask, tensors_in
from mrv2lab.graphs.python_ops import seen_inside

KIND, SHORT = "host-sync", "sync"
_WAITS = {"item", "tolist", "cpu", "numpy", "nonzero", "unique", "synchronize", "bool", "int", "float", "to"}
_INDEXED = {"aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"}


def find(passes: Passes, error: HostSyncError) -> Iterator[Finding]:
    """What has ended the capture; then whatever else waits, as an eager pass shows."""
    at, memory = users_frame(error), cuda._MEMORY if passes.session.backend == "cuda" else emulated._MEMORY
    yield _finding(_of_index(error, memory), at and (at.tb_frame.f_code, at.tb_lineno, at.tb_lasti))
    noted: list[Finding] = []

    def note(error: HostSyncError) -> None:
        frame = users_running(sys._getframe(1))
        noted.append(_finding(error, frame and (frame.f_code, frame.f_lineno, frame.f_lasti)))

    def waits(original: Any) -> Any:
        told = f"{original.__name__}() makes the host wait for the device during capture"
        return lambda *_, **__: note(HostSyncError(told))

    recorder, methods, ops = Recorder(passes.session), _Methods(memory), _Ops(memory)
    methods.note = ops.note = note
    with suppress(Exception, UnwrittenIndex), recorder, ExitStack() as stack:
        stack.enter_context(patched(WAITS, waits))
        stack.enter_context(seen_inside(methods))
        stack.enter_context(ops)
        passes.engine.eager()
    recorder.saved.restore()
    yield from noted


def _of_index(error: HostSyncError, memory: Memory) -> HostSyncError:
    """Of an index that is the host's, such as a list: it is copied, and nobody waits for the device."""
    frame, _ = [*walk_tb(error.__traceback__)][-1]
    call: Any = frame.f_locals.get("call")  # that the guard has refused
    indices = tensors_in(call["indices"]) if getattr(call, "name", None) in _INDEXED else ()
    for shape in (list(t.shape) for t in indices if not (is_mask(t) or memory.is_device(t))):
        told = f"{call.name} copies an index of shape {shape} from the host during capture; a graph cannot"
        return HostSyncError(f"{told} hold that. Keep it in a tensor on the device, and fill that before")
    return error


class _Ops(_OpGuard):
    """Tells of what a capture would refuse, and lets it happen."""

    note: Callable[[HostSyncError], None]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except HostSyncError as error:
            self.note(error)
            return func(*args, **(kwargs or {}))


class _Methods(_MethodGuard):
    """The same of what never reaches the dispatcher."""

    note: Callable[[HostSyncError], None]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return super().__torch_function__(func, types, args, kwargs)
        except HostSyncError as error:
            self.note(error)
            with _disable_current_modes():
                return func(*args, **(kwargs or {}))


def _finding(error: HostSyncError, at: tuple[CodeType, int, int] | None) -> Finding:
    """What waited, and the line that asked for it: its code, the line, and the instruction that runs."""
    told = str(error).partition(", or keep it in host memory")[0]  # read before capture, it would freeze
    if at is None:
        return Finding(KIND, "the step", told)
    code, line, instruction = at
    running = next(islice(code.co_positions(), instruction // 2, None), ())
    place = Place(code.co_filename, line, code.co_name)
    return Finding(KIND, _subject(statements_at(place.file, line), running), told, place)


def _subject(statements: list[ast.stmt], running: tuple[Any, ...]) -> str:
    """The expression that waits: the receiver or the argument of the call, or the condition of a branch."""
    if not statements:
        return "the step"
    nodes = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.expr)]
    exact = [n for n in nodes if (n.lineno, n.end_lineno, n.col_offset, n.end_col_offset) == running]
    if exact:
        return _waiting(exact[0]) or ast.unparse(exact[0])
    last = statements[-1]
    part = getattr(last, "test", None) or getattr(last, "value", None) or last
    return next(filter(None, map(_waiting, ast.walk(last))), None) or ast.unparse(part)


def _waiting(node: ast.AST) -> str | None:
    """What a call waits for, if its name says that it waits."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in _WAITS:
            is_function = isinstance(owner, ast.Name) and owner.id == "torch"
            return ast.unparse(node if is_function or name == "synchronize" else owner)
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in _WAITS:
            return ast.unparse(first)
    return None
