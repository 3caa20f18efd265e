"""A guard that stays on: what a capture read on the host is looked at again before each replay.

    with guard():                     # or guard("refuse")
        engine.capture_model()        # by mrv2lab.graphs, or by torch.cuda.graph
    engine.serve()                    # FrozenWarning: self.scale is 3, and was 2 when the graph was captured

While a graph is captured, each line of the functions that it calls is watched: numbers, texts and tensors in
attributes, elements, globals and closures. Before a replay all of them are read again. One that is another,
or a tensor that lies elsewhere, is frozen in the graph as it was. Whether that matters, the guard cannot
know: an audit can. A value that is only used while capturing belongs into `ignore`.
"""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any, Literal, NamedTuple

import torch

from mrv2lab.audit.atoms import MISSING, Atom, atoms_at, attribute
from mrv2lab.audit.lines import Lines, Positions
from mrv2lab.audit.report import Place
from mrv2lab.errors import BadInput
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.base import CaptureObserver, observed
from mrv2lab.graphs.foreign import observable_graphs

Mode = Literal["warn", "refuse"]
SIMPLE = bool | int | float | complex | str | torch.dtype | None  # no code of the user's compares these


class FrozenWarning(UserWarning):
    """A graph is replayed that was captured with another value."""


class Frozen(RuntimeError):
    """The same, where replays are refused."""


class Change(NamedTuple):
    """Something that a capture read and that is another now."""

    name: str  # as the source writes it: `self.scale`
    where: Place  # the line that read it
    old: Any
    new: Any

    def __str__(self) -> str:
        moved = isinstance(self.old, torch.Tensor) and isinstance(self.new, torch.Tensor)
        gone = "is gone" if self.new is MISSING else "lies elsewhere" if moved else f"is {_short(self.new)}"
        then = "" if isinstance(self.old, torch.Tensor) else f", and was {_short(self.old)} at capture"
        return f"{self.name} {gone}{then}: read at {self.where}, and frozen in the graph"


class _Read(NamedTuple):
    name: str
    where: Place
    get: Callable[[], Any]
    value: Any
    address: int | None  # of a tensor's first element


class Guarded:
    """What the capture of one graph read."""

    def __init__(self, reads: Sequence[_Read], mode: Mode):
        self._mode, self._told, self.reads = mode, set[str](), list(reads)
        # What the capture itself moves on, like a count of steps, has no value that could be frozen.
        moved = {change.name for change in self.changes()}
        self.reads = [read for read in reads if read.name not in moved]

    def changes(self) -> list[Change]:
        """What is another now."""
        found = []
        for name, where, get, value, address in self.reads:
            try:
                new = get()
            except Exception:  # what led to it is gone
                new = MISSING
            is_same = new is value and (address is None or value.data_ptr() == address)
            if not is_same and not _is_equal(value, new, address):
                found.append(Change(name, where, value, new))
        return found

    def check(self) -> None:
        """Warn of what is another now, of each once; Frozen where that is refused."""
        for change in self.changes():
            if self._mode == "refuse":
                raise Frozen(str(change))
            if change.name not in self._told:
                self._told.add(change.name)
                warnings.warn(str(change), FrozenWarning, stacklevel=4)


@contextmanager
def guard(mode: Mode = "warn", *, ignore: Sequence[str] = ()) -> Iterator[list[Guarded]]:
    """Graphs that this thread captures in this context are guarded from then on.

    Args:
        mode: what a replay does where something is another now: `warn` once, or `refuse` with Frozen.
        ignore: names that may change, as the source writes them.

    Yields:
        A list that gets a `Guarded` for each graph.

    Raises:
        BadInput: another mode.
    """
    if mode not in ("warn", "refuse"):
        raise BadInput(f"a guard can warn or refuse, not {mode}")
    watch = _Watch(mode, ignore)
    with observed(watch), observable_graphs() if torch.cuda.is_available() else nullcontext():
        yield watch.guarded


class _Watch(CaptureObserver):
    def __init__(self, mode: Mode, ignore: Sequence[str]):
        self.mode, self.ignore, self.guarded = mode, {*ignore}, list[Guarded]()
        self._lines = _Reads()

    def begin(self) -> None:
        self._lines = _Reads()
        self._lines.__enter__()

    def end(self) -> None:
        self._lines.__exit__(None, None, None)

    def captured(self, graph: CapturedGraph) -> None:
        reads = [read for read in self._lines.reads.values() if read.name not in self.ignore]
        guarded, replay = Guarded(reads, self.mode), graph.replay
        self.guarded.append(guarded)

        def checked() -> None:
            guarded.check()
            replay()

        graph.replay = checked  # type: ignore[method-assign]

    def replaying(self, graph: CapturedGraph) -> Any:
        return nullcontext()


class _Reads(Lines):
    """Keeps how each value can be read again: what leads to it from an object that is held, `root`."""

    def __init__(self) -> None:
        super().__init__(Positions())
        self.reads: dict[tuple[int, str], _Read] = {}
        self._paths: dict[
            int, tuple[Any, str, str]
        ] = {}  # of objects, by `id`: root, path, and the source's name

    def _on_line(self, frame: FrameType, call: Any) -> None:
        for atom in atoms_at(frame.f_code, frame.f_lineno):
            if (found := self._found(atom, frame, frame.f_locals)) is None:
                continue
            root, path, name, value = found
            if isinstance(value, torch.Tensor | SIMPLE):
                place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
                address = value.data_ptr() if isinstance(value, torch.Tensor) else None
                read = _Read(name, place, partial(eval(f"lambda root: {path}"), root), value, address)
                self.reads.setdefault((id(root), path), read)
            else:
                self._paths.setdefault(id(value), (root, path, name))
        super()._on_line(frame, call)

    def _found(self, atom: Atom, frame: FrameType, names: dict[str, Any]) -> tuple[Any, str, str, Any] | None:
        """Root, path, name, value; None where it cannot be read again, or not without code of the user's."""
        owner, code = names.get(atom.name, frame.f_globals.get(atom.name, MISSING)), frame.f_code
        root, path, name = self._paths.get(id(owner), (owner, "root", atom.name))
        if root is owner and atom.name in code.co_freevars:
            root, path = _cell(code, atom.name, owner), "root.cell_contents"
        elif root is owner and atom.name not in names:
            root, path = frame.f_globals, f"root[{atom.name!r}]"
        elif root is owner and not atom.steps:
            return None  # a local variable
        for is_attribute, key in atom.steps:
            if isinstance(owner, torch.Tensor) or isinstance(key, Atom):
                return None
            if is_attribute:
                owner, step = attribute(owner, key), f".{key}"
            else:
                is_plain = type(owner) in (dict, list, tuple) and type(key) in (int, str)
                owner, step = owner[key] if is_plain else MISSING, f"[{key!r}]"
            path, name = path + step, name + step
        if atom.is_len:
            owner = len(owner) if type(owner) in (list, tuple, dict, set) else MISSING
            path, name = f"len({path})", f"len({name})"
        return None if owner is MISSING or root is None else (root, path, name, owner)


def _cell(code: CodeType, name: str, value: Any) -> Any:
    """The cell of a closure's variable; None if nobody has it."""
    functions = (one for one in gc.get_referrers(code) if isinstance(one, FunctionType) and one.__closure__)
    cells = (one.__closure__[code.co_freevars.index(name)] for one in functions if one.__closure__)
    return next((cell for cell in cells if cell.cell_contents is value), None)


def _is_equal(old: Any, new: Any, address: int | None) -> bool:
    if isinstance(old, torch.Tensor):
        is_there = isinstance(new, torch.Tensor) and new.data_ptr() == address
        return is_there and (new.shape, new.dtype) == (old.shape, old.dtype)
    return type(new) is type(old) and (new == old or (new != new and old != old))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."
