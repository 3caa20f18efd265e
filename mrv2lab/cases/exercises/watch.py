"""A reader's function in a seam: called as it is, and watched while it runs.

What a repair is, is judged by what it does. A watch notes facts, such as a flag's value or a tensor's
address, and never looks at the text of the function. Text is only quoted, to name a line.
"""

import ast
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any

from mrv2lab.errors import BadInput, CutOff, counted
from mrv2lab.lifeline import REFUSED, was_refused

_PACKAGE = Path(__file__).parents[2]

NOT_WRITTEN = NotImplementedError  # what a stub raises


def require_function(fn: Any) -> None:
    """BadInput: it cannot be called, or the notebook holds a later version of it that is no Python."""
    if not callable(fn):
        raise BadInput(f"this is of type {type(fn).__name__}; give the function itself, uncalled")
    name, ipython = getattr(fn, "__name__", None), sys.modules.get("IPython")
    shell = ipython.get_ipython() if name and ipython else None
    is_written = re.compile(rf"^def {re.escape(name or '')}\b", re.MULTILINE)
    cells = filter(is_written.search, reversed(shell.user_ns.get("In", ()) if shell else ()))
    try:
        ast.parse(next(cells, ""))
    except SyntaxError:
        told = f"the last version of {name} did not compile; this is the one before it"
        raise BadInput(f"{told}. Mend that cell, and run it before this one") from None


@dataclass(frozen=True)
class Trouble:
    """An exception on the way through a reader's function."""

    error: str  # name of its class
    message: str  # its first line
    # file, line: the innermost line of the reader's own; None if the exception passed through none
    file: str | None = None
    line: int | None = None
    number: int | None = None  # that line, from the function's first; None: it is another function's
    is_stub: bool = False  # the function itself said that it is not written yet
    is_cut_off: bool = False  # the machine was too busy, and no line is to blame
    is_own: bool = False  # that line raised it by itself; nothing of the runner's was called by it

    @property
    def is_no_fault(self) -> bool:
        """Whether it says nothing about what the function does."""
        return self.is_stub or self.is_cut_off

    @property
    def place(self) -> str | None:
        """`line 3: adapter_manager.no_such_method()`, counted from the `def`."""
        if self.file is None or self.line is None:
            return None
        counted = f"line {self.number}" if self.number else "line"
        return f"{counted}: {linecache.getline(self.file, self.line).strip()}"


class Watch:
    """Stands in a seam for a reader's function. A case's own watch notes what its mistakes are known by.

    What a watch computes on tensors in a step counts as the step's own work, unless it is done inside
    `torch.utils._python_dispatch._disable_current_modes()`, as the watch of `pp_eager_fallback` does.
    """

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.trouble: Trouble | None = None  # the first exception, once there was one

    def __call__(self, *args: Any) -> Any:
        __tracebackhide__ = True
        self._require_arguments(args)
        with self.watching(*args) as given:
            try:
                result = self.fn(*given)
            except SystemExit as error:  # would end the notebook's kernel
                raise RuntimeError(f"{self.__name__} asked Python to exit") from error
        if inspect.isgenerator(result) or inspect.iscoroutine(result):
            result.close()
            raise self._broken(f"{self.__name__} is a generator or a coroutine: calling it runs none of it")
        if complaint := self.left(result, *args):
            kind = "None" if result is None else f"a {type(result).__name__}"
            raise self._broken(f"{self.__name__} returned {kind}; {complaint}")
        return result

    @contextmanager
    def watching(self, *args: Any) -> Iterator[tuple[Any, ...]]:
        """Surrounds the call, and says what the function is called with."""
        yield args

    def left(self, result: Any, *args: Any) -> str | None:
        """Look at what the function has left behind; say what the seam expects, if the result is not that."""
        return None

    def collect(self) -> None:
        """Bring facts home, when all is over."""

    def note(self, error: BaseException) -> None:
        """Keep the first exception, with the reader's own line in it."""
        self.trouble = self.trouble or getattr(error, "trouble", None) or trouble_of(error, self.fn)

    def _require_arguments(self, args: tuple[Any, ...]) -> None:
        try:
            signature = inspect.signature(self.fn)
            signature.bind(*args)
        except TypeError as error:
            kinds = ", ".join(type(arg).__name__ for arg in args)
            given = f"is given {counted(len(args), 'argument')}: {kinds}"
            raise self._broken(f"{self.__name__} takes {signature} and {given}") from error
        except ValueError:  # a function written in C has no signature; the call will tell
            return

    def _broken(self, message: str) -> TypeError:
        """An error about the function as a whole: its line is that of the `def`."""
        error: Any = TypeError(message)
        code = _code_of(self.fn)
        place = (code.co_filename, _def_line(code), 1) if code else ()
        error.trouble = Trouble("TypeError", message, *place)
        return error  # type: ignore[no-any-return]


def trouble_of(error: BaseException, fn: Callable[..., Any]) -> Trouble:
    """The exception, and the innermost line of the reader's own that it came through."""
    kind, message = type(error).__name__, (str(error).splitlines() or [""])[0]
    if was_refused(error):
        kind, message = "MemoryError", REFUSED
    if isinstance(error, CutOff):
        return Trouble(kind, message, is_cut_off=True)
    code = _code_of(fn)
    for raised in filter(None, (error, error.__cause__)):
        frames = [(frame.f_code, line) for frame, line in walk_tb(raised.__traceback__)]
        mine = [at for at, (other, _) in enumerate(frames) if code and _is_readers(other, code)]
        if code and mine:
            other, line = frames[mine[-1]]
            number = line - code.co_firstlineno + 1 if _is_inside(other, code) else None
            is_stub = isinstance(error, NOT_WRITTEN) and other is code and frames[-1][0] is code
            is_own = not any(_is_runners(called) for called, _ in frames[mine[-1] + 1 :])
            return Trouble(kind, message, code.co_filename, line, number, is_stub, is_own=is_own)
    return Trouble(kind, message)


def _is_runners(code: CodeType) -> bool:
    """Code of this package, but not what an op of the reader's passes through while it is recorded."""
    file = Path(code.co_filename)
    passed_through = (_PACKAGE / "graphs", _PACKAGE / "kernels", _PACKAGE / "cases" / "exercises")
    return file.is_relative_to(_PACKAGE) and not any(map(file.is_relative_to, passed_through))


def _is_readers(other: CodeType, code: CodeType) -> bool:
    """Code of the function's own file; of a function of mrv2lab only itself and what is defined in it."""
    if other.co_filename != code.co_filename:
        return False
    return _is_inside(other, code) or not Path(code.co_filename).is_relative_to(_PACKAGE)


def _is_inside(other: CodeType, code: CodeType) -> bool:
    return other is code or other.co_qualname.startswith(f"{code.co_qualname}.<locals>")


def _code_of(fn: Callable[..., Any]) -> CodeType | None:
    code = getattr(fn, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _def_line(code: CodeType) -> int:
    """The line of the `def`: decorators stand before it."""
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return line
