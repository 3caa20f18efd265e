"""A reader's function in a seam: called as it is, and watched while it runs.

What a repair is, is judged by what it does. A watch notes facts, such as a flag's value or a tensor's
address, and never looks at the text of the function. Text is only quoted, to name a line.
"""

import inspect
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from types import CodeType
from typing import Any

NOT_WRITTEN = NotImplementedError  # what a stub raises


@dataclass(frozen=True)
class Trouble:
    """An exception on the way through a reader's function.

    Attributes:
        error: name of the exception's class.
        message: its first line.
        file, line, first_line: the innermost line of the reader's own, and where the function begins; None
            if the exception never passed through the function's file.
        is_stub: the function itself said that it is not written yet.
    """

    error: str
    message: str
    file: str | None = None
    line: int | None = None
    first_line: int = 1
    is_stub: bool = False

    @property
    def place(self) -> str | None:
        """`line 3: adapter_manager.no_such_method()`, counted from the `def`."""
        if self.file is None or self.line is None:
            return None
        return f"line {self.line - self.first_line + 1}: {linecache.getline(self.file, self.line).strip()}"


class Watch:
    """Stands in a seam for a reader's function. A case's own watch notes what its mistakes are known by.

    Attributes:
        trouble: the first exception, once there was one.
    """

    def __init__(self, fn: Callable[..., Any]):
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.trouble: Trouble | None = None

    def __call__(self, *args: Any) -> Any:
        __tracebackhide__ = True
        self._require_arguments(args)
        with self.watching(*args):
            try:
                result = self.fn(*self.given(*args))
            except SystemExit as error:  # would end the notebook's kernel
                raise RuntimeError(f"{self.__name__} asked Python to exit") from error
        if inspect.isgenerator(result) or inspect.iscoroutine(result):
            result.close()
            raise self._broken(f"{self.__name__} is a generator or a coroutine: calling it runs none of it")
        if complaint := self.complaint(result):
            raise self._broken(f"{self.__name__} returned {_kind_of(result)}; {complaint}")
        self.left(result, *args)
        return result

    def given(self, *args: Any) -> tuple[Any, ...]:
        """What the function is called with."""
        return args

    @contextmanager
    def watching(self, *args: Any) -> Iterator[None]:
        """Surrounds the call."""
        yield

    def complaint(self, result: Any) -> str | None:
        """What the seam expects, if the function's result is not that."""
        return None

    def left(self, result: Any, *args: Any) -> None:
        """Look at what the function has left behind."""

    def collect(self) -> None:
        """Bring facts home, when all is over."""

    def note(self, error: BaseException) -> None:
        """Keep the first exception, with the reader's own line in it."""
        self.trouble = self.trouble or getattr(error, "trouble", None) or trouble_of(error, self.fn)

    def _require_arguments(self, args: tuple[Any, ...]) -> None:
        try:
            inspect.signature(self.fn).bind(*args)
        except TypeError as error:
            kinds = ", ".join(type(arg).__name__ for arg in args)
            raise self._broken(f"{self.__name__} is called with ({kinds}): {error}") from error
        except ValueError:  # a function written in C has no signature; the call will tell
            return

    def _broken(self, message: str) -> TypeError:
        """An error about the function as a whole: its line is that of the `def`."""
        error: Any = TypeError(message)
        code = _code_of(self.fn)
        line = _def_line(code) if code else None
        file = code.co_filename if code else None
        error.trouble = Trouble("TypeError", message, file, line, code.co_firstlineno if code else 1)
        return error  # type: ignore[no-any-return]


def trouble_of(error: BaseException, fn: Callable[..., Any]) -> Trouble:
    """The exception, and the innermost line of the function's own file that it came through."""
    message = (str(error).splitlines() or [""])[0]
    code = _code_of(fn)
    lines = _lines_in(error, code) or (_lines_in(error.__cause__, code) if error.__cause__ else [])
    if code is None or not lines:
        return Trouble(type(error).__name__, message)
    is_stub = isinstance(error, NOT_WRITTEN) and _raised_in(error) == code.co_filename
    return Trouble(type(error).__name__, message, code.co_filename, lines[-1], code.co_firstlineno, is_stub)


def _lines_in(error: BaseException, code: CodeType | None) -> list[int]:
    frames = walk_tb(error.__traceback__)
    return [line for frame, line in frames if code and frame.f_code.co_filename == code.co_filename]


def _raised_in(error: BaseException) -> str | None:
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return files[-1] if files else None


def _code_of(fn: Callable[..., Any]) -> CodeType | None:
    code = getattr(fn, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _def_line(code: CodeType) -> int:
    """The line of the `def`: decorators stand before it."""
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return line


def _kind_of(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
