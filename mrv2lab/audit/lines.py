"""Which lines of the user's code run, in which order, and what their host values are at that moment.

`sys.settrace` reports every line, from Python 3.12 on `sys.monitoring`, which costs nothing in code that is
not looked at; torch, Triton, numpy, the standard library and the audit itself are left out. A position is a
line together with the lines that called it and how often it has run there, so that the same moment of two
passes is the same position, whatever one of them skips. Where one line calls a function several times, each
of the calls counts for itself.
"""

import ast
import functools
import importlib.util
import os
import re
import sys
import sysconfig
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from mrv2lab.audit.atoms import Atom, atoms_at, expression_at, function_at, statements_at
from mrv2lab.audit.report import Place
from mrv2lab.errors import AuditError
from mrv2lab.limits import PATIENCE

ROOT = 0
MONITORS = sys.version_info >= (3, 12)
MAX_LINES = 5_000_000  # lines of the user's code that one pass may run
MAX_WAIT_S = 30.0
"""How long a loop of the user's may run and give the device no work; by the clock `PATIENCE` times that."""

_PACKAGE = Path(__file__).resolve().parent.parent


def _foreign() -> tuple[str, ...]:
    """Where code lies that is not the user's."""
    packages = ["torch", "triton", "numpy", "_distutils_hack"]
    if importlib.util.find_spec("cuda"):
        packages.append("cuda.bindings")  # reads the nodes of a captured graph
    specs = [importlib.util.find_spec(name) for name in packages]
    # Not torchvision, which is somebody's engine, for torch.
    places = [f"{Path(spec.origin).parent}{os.sep}" for spec in specs if spec and spec.origin]
    own = "audit/ graphs/ kernels/dual.py kernels/interpreter.py errors.py libtriton.py testing.py"
    around = "live/v1.py live/v2.py"  # stand between an engine and its step
    return (*places, *(f"{_PACKAGE}{os.sep}{name}" for name in f"{own} {around}".split()))


_FOREIGN = _foreign()
_INDUCTORS = re.compile(r"[/\\]c[a-z2-7]{51}\.py$")  # named by the hash of what it wrote there
_STDLIB = sysconfig.get_paths()["stdlib"]


def is_users(code: CodeType) -> bool:
    """Whether a function was written by whoever wrote the step, or a library it uses."""
    file = code.co_filename
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    is_library = file.startswith(_STDLIB) and "site-packages" not in file
    return not (is_library or file.startswith(_FOREIGN) or _INDUCTORS.search(file))


_IMPORT = "<module>"  # a module's own lines: thousands, with the functions they call, and they decide nothing


def users_frame(error: BaseException | None) -> TracebackType | None:
    """The innermost line of the user's that an exception passed through."""
    found, at = None, error.__traceback__ if error else None
    while at is not None:
        found, at = at if is_users(at.tb_frame.f_code) else found, at.tb_next
    return found


def users_running(frame: FrameType | None) -> FrameType | None:
    """The innermost function of the user's that runs, from a frame outwards."""
    while frame is not None and not is_users(frame.f_code):
        frame = frame.f_back
    return frame


@contextmanager
def untraced() -> Iterator[None]:
    """In here runs no line of the user's: calls of torch's Python, hundreds for an op, are not looked at."""
    tracer = None if MONITORS else sys.gettrace()
    if tracer is not None:
        sys.settrace(None)
    try:
        yield
    finally:
        if tracer is not None:
            sys.settrace(tracer)


class Positions:
    """Numbers for positions, shared by the passes that are compared."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, CodeType, int, int], int] = {}
        self._keys: list[Any] = [None]  # for ROOT
        self._calls: dict[int, list[int]] = defaultdict(list)  # positions of what each calls

    def number(self, parent: int, code: CodeType, line: int, turn: int) -> int:
        """The number of a line that runs for the `turn`th time in a call made at `parent`."""
        key = (parent, code, line, turn)
        if (number := self._numbers.get(key)) is None:
            number = self._numbers[key] = len(self._keys)
            self._keys.append(key)
            self._calls[parent].append(number)
        return number

    def place(self, position: int) -> Place | None:
        key = self._keys[position]
        return None if key is None else Place(key[1].co_filename, key[2], key[1].co_name)

    def atoms(self, position: int) -> tuple[Atom, ...]:
        key = self._keys[position]
        return atoms_at(key[1], key[2]) if key else ()

    def statements(self, position: int) -> list[ast.stmt]:
        key = self._keys[position]
        return statements_at(key[1].co_filename, key[2]) if key else []

    def expression(self, position: int, spot: int) -> ast.expr | None:
        """What an instruction belongs to, see `atoms.expression_at`."""
        key = self._keys[position]
        return expression_at(key[1].co_filename, key[1], key[2], spot) if key else None

    def function(self, position: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function in which the position lies, where there is source."""
        key = self._keys[position]
        return function_at(key[1].co_filename, key[2]) if key else None

    def code(self, position: int) -> CodeType:
        code: CodeType = self._keys[position][1]
        return code

    def call(self, position: int) -> tuple[int, CodeType, int]:
        """The call that a position lies in: where it was made, of what, and the how manieth there."""
        parent, code, _, turn = self._keys[position]
        return parent, code, turn // _MOST_TURNS

    def turns(self, position: int, line: int) -> list[int]:
        """The positions of another line of the same call, in order."""
        parent, code, _, turn = self._keys[position]
        first, found = turn - turn % _MOST_TURNS, list[int]()
        while (number := self._numbers.get((parent, code, line, first + len(found)))) is not None:
            found.append(number)
        return found

    def parent(self, position: int) -> int:
        """Where the call was made in which the position lies; ROOT at the outermost."""
        return self._keys[position][0] if position else ROOT

    def inside(self, position: int) -> set[int]:
        """The positions of what a position calls, directly and further in."""
        found, left = set[int](), [position]
        while left:
            called = self._calls.get(left.pop(), ())
            found.update(called)
            left += called
        return found

    def chain(self, position: int) -> list[int]:
        """The position and those it was called from, innermost first."""
        found = []
        while position != ROOT:
            found.append(position)
            position = self.parent(position)
        return found


_MOST_TURNS = 1 << 32  # of a line in one call; higher ones belong to the next call from the same position


@dataclass(slots=True)
class _Call:
    """One call of a function that is under way."""

    frame: FrameType
    parent: int  # where it was made
    position: int
    first: int  # the number with which its turns begin
    turns: dict[int, int] = field(default_factory=dict)  # by line
    made: Counter[tuple[int, CodeType]] = field(default_factory=Counter)  # what its positions have called


Anchor = Callable[..., Any] | Sequence[Callable[..., Any]] | None
"""Functions that passes go through which are to be compared; mostly there is one."""


class Lines:
    """The lines of one pass, while it is entered. Calls of an anchor begin a chain of positions anew, so
    that passes which reach it along different ways can be compared."""

    def __init__(self, positions: Positions, anchor: Anchor = None):
        self.positions = positions
        self.values: dict[int, tuple[Any, ...]] = {}  # of the atoms at each position; may be exchanged
        self.paused = False  # while a kernel is interpreted, whose lines are device work
        self.num_passes = 0  # how often an anchor was called
        self.latest: dict[int, tuple[Any, ...]] = {}  # as `values`, of what ran since then
        self._spots: dict[tuple[int, int, int], int] = {}  # the instruction that made a call
        self.passed: Callable[[int], object] | None = None  # is told of each position that is left
        several = anchor if isinstance(anchor, (list, tuple)) else () if anchor is None else [anchor]
        codes = (getattr(getattr(one, "__func__", one), "__code__", None) for one in several)
        self.anchors = [code for code in codes if code is not None]  # few: hashes of code are slow
        self._calls: list[_Call] = []
        self._is_users = functools.cache(is_users)
        self._foreign: dict[int, CodeType] = {}  # functions that are not, by id: hashes of code are slow
        self.most, self._num_lines = MAX_LINES, 0
        self._imports = 0

    @property
    def current(self) -> int:
        """The position of the innermost line of the user's that runs now."""
        return self._calls[-1].position if self._calls else ROOT

    @property
    def spot(self) -> int:
        """The offset of the instruction by which that line runs now; -1 if there is no such line."""
        return self._calls[-1].frame.f_lasti if self._calls else -1

    def called_by(self, position: int) -> int:
        """The offset of the instruction that made the call a position lies in; -1 where nobody knows."""
        parent, code, number = self.positions.call(position)
        return self._spots.get((parent, id(code), number), -1)

    def __enter__(self) -> "Lines":
        self.works()
        self._watched: dict[int, CodeType] = {}  # by id: those of two empty files are equal
        self._thread = threading.get_ident()  # unlike a tracer, a monitor hears of every thread
        if MONITORS:
            self._monitor()
        else:
            self._before = sys.gettrace()
            sys.settrace(self._on_call)
        return self

    def __exit__(self, *exception: Any) -> None:
        if MONITORS:
            self._stop_monitoring()
        else:
            sys.settrace(self._before)

    def works(self) -> None:
        """The pass has just done something on the device. Clocks are looked at only where it is asked for."""
        self._has_worked = True

    @property
    def _waits_s(self) -> float:
        """For how long it was seen that nothing is done on the device, once that is too long; else 0."""
        if self._has_worked:
            self._has_worked, self._had_run, self._at = False, time.thread_time(), time.monotonic()
        ran, passed = time.thread_time() - self._had_run, time.monotonic() - self._at
        return passed if ran > MAX_WAIT_S or passed > PATIENCE * MAX_WAIT_S else 0.0

    def go_on(self) -> None:
        """Trace calls from here on, where something has switched the tracer off."""
        if not MONITORS:
            sys.settrace(self._on_call)

    # ---- by sys.monitoring ----

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events = monitoring.events
        self._tool = next(i for i in range(6) if monitoring.get_tool(i) is None)
        self._local = events.LINE | events.PY_RETURN | events.PY_YIELD
        monitoring.use_tool_id(self._tool, "mrv2lab.audit")
        self._heard: dict[int, Any] = dict.fromkeys((events.PY_START, events.PY_RESUME), self._on_start)
        self._heard[events.LINE] = lambda code, line: self._line(sys._getframe(1))
        ends = (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND)  # the last by an exception
        self._heard |= dict.fromkeys(ends, lambda code, offset, value: self._leave(sys._getframe(1)))
        for event, callback in self._heard.items():
            monitoring.register_callback(self._tool, event, callback)
        monitoring.set_events(self._tool, events.PY_START | events.PY_RESUME | events.PY_UNWIND)

    def _stop_monitoring(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        monitoring.set_events(self._tool, 0)
        for code in self._watched.values():
            monitoring.set_local_events(self._tool, code, 0)
        for event in self._heard:
            monitoring.register_callback(self._tool, event, None)
        monitoring.free_tool_id(self._tool)
        monitoring.restart_events()  # whoever takes the number next is told of everything again

    def _on_start(self, code: CodeType, offset: int) -> Any:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        if not self._is_users(code):
            return monitoring.DISABLE
        if threading.get_ident() != self._thread:
            return None
        if code.co_name == _IMPORT:
            self._imports += 1
            self._watch(code, monitoring.events.PY_RETURN)
        elif not self.paused and not self._imports:
            self._watch(code, self._local)
            self._call(sys._getframe(1))
        return None

    def _watch(self, code: CodeType, events: int) -> None:
        if id(code) not in self._watched:
            self._watched[id(code)] = code
            sys.monitoring.set_local_events(self._tool, code, events)  # type: ignore[attr-defined]

    # ---- by sys.settrace ----

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if id(code) in self._foreign or self.paused or self._imports:
            return None
        if not self._is_users(code):
            self._foreign[id(code)] = code
            return None
        if frame.f_code.co_name == _IMPORT:
            self._imports += 1
            self._watched[id(frame.f_code)] = frame.f_code
            frame.f_trace_lines = False
        else:
            self._call(frame)
        return self._on_event

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._line(frame)
        elif event == "return":
            self._leave(frame)
        return self._on_event

    # ---- what both have in common ----

    def _call(self, frame: FrameType) -> None:
        parent = first = 0
        if frame.f_code in self.anchors:  # of a file that is run anew another object
            self.num_passes += 1
            self.latest = {}
        elif self._calls:
            caller, parent = self._calls[-1], self.current
            first = caller.made[parent, frame.f_code] * _MOST_TURNS
            caller.made[parent, frame.f_code] += 1
            self._spots[parent, id(frame.f_code), first // _MOST_TURNS] = caller.frame.f_lasti
        self._calls.append(_Call(frame, parent, parent, first))

    def _back_in(self, frame: FrameType) -> bool:
        """Forget calls that an exception has ended; False for a frame of another thread or entered unseen."""
        if self._calls and self._calls[-1].frame is frame:  # mostly
            return True
        if threading.get_ident() != self._thread or not any(call.frame is frame for call in self._calls):
            return False
        while self._calls[-1].frame is not frame:
            self._calls.pop()
        return True

    def _leave(self, frame: FrameType) -> None:
        if frame.f_code.co_name == _IMPORT:
            self._imports -= id(frame.f_code) in self._watched and threading.get_ident() == self._thread
        elif self._back_in(frame):
            if self.passed is not None:
                self.passed(self.current)
            self._calls.pop()

    def _line(self, frame: FrameType) -> None:
        if self.paused or not self._back_in(frame):
            return
        call, line = self._calls[-1], frame.f_lineno
        if self.passed is not None:
            self.passed(call.position)
        self._num_lines += 1
        turn = call.turns[line] = call.turns.get(line, -1) + 1
        endless = f"{self.most} lines have run, the last at" if self._num_lines > self.most else ""
        if turn and turn % 64 == 0 and (waited_s := self._waits_s):
            endless = f"no work on the device for {waited_s:.0f} s, at"
        if endless:
            place = Place(frame.f_code.co_filename, line, frame.f_code.co_name)
            raise AuditError(f"the step does not end: {endless} {place}")
        call.position = self.positions.number(call.parent, frame.f_code, line, call.first + turn)
        self._meet(call.position, frame, line)

    def _meet(self, position: int, frame: FrameType, line: int) -> None:
        """A line is about to run."""
        atoms = atoms_at(frame.f_code, line)
        names = frame.f_locals if atoms else {}
        values = tuple(atom.value(frame, names) for atom in atoms)
        self.values[position] = self.latest[position] = values


class KnownLines(Lines):
    """The lines of a pass that mostly runs what another one has run. Of the first line that this has not, it
    notes what came before it, and the values there: the branch that leads to it."""

    def __init__(self, positions: Positions, anchor: Anchor, known: Set[int]):
        super().__init__(positions, anchor)
        self._known = known
        self._last: tuple[int, FrameType, int] | None = None
        self.strayed: tuple[int, tuple[Any, ...], int] | None = None  # position, values, and the new line's

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._last = None  # a frame keeps what its variables hold

    def _meet(self, position: int, frame: FrameType, line: int) -> None:
        if position in self._known:
            self._last = position, frame, line
        elif self.strayed is None and self._last is not None:
            before, at, number = self._last
            values = tuple(atom.value(at, at.f_locals) for atom in atoms_at(at.f_code, number))
            self.strayed = before, values, position


def same(a: Any, b: Any) -> bool:
    """Equal, where a NaN equals itself and True is not 1."""
    return type(a) is type(b) and (a == b or (a != a and b != b))
