"""The exceptions of mrv2lab: one small tree.

Everything a user can cause by a wrong name, shape, file or machine is a `BadInput`; the command line
turns it into one line and exit status 2. Everything that capture forbids is a `CaptureError`.
"""

import ast
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path


class Mrv2labError(Exception):
    """Base of every exception that mrv2lab raises on purpose."""


class BadInput(Mrv2labError):
    """A wrong name, shape, rung or file. The message says what was given, what is possible, what to do."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints: the message is all that a reader needs."""
        return [f"{type(self).__name__}: {self}"]


class RecordError(BadInput):
    """A results file that is damaged, incomplete or not one of ours."""


class CaptureError(Mrv2labError):
    """Something that a CUDA graph cannot hold was tried during capture, for example a read by the host."""


class EmulatorLimit(CaptureError):
    """The emulator cannot record this, and a GPU might: it says nothing about the program."""


class HostSyncError(CaptureError):
    """During capture the host wanted to wait for the device: for a value, or for all work to be done."""


class AuditError(BadInput):
    """A step that cannot be audited: it raises, never ends, or differs each time. Names the line."""


class NotRepeatable(AuditError):
    """A step that moves its state on, so that its passes cannot be compared. Says what would help."""


class CutOff(Mrv2labError):
    """A run was ended though it had hardly been given a processor: the machine is busy, or the run waits."""


class StaleCapture(Mrv2labError, UserWarning):
    """A guard's word before a replay: something that the capture read has changed since. Warned or raised."""


class IllegalAccess(Mrv2labError):
    """An interpreted kernel reached outside the tensors it was given. On a GPU the context would be lost."""


def counted(number: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Of a file of anybody: no letter of it commands a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def file_and_function(target: str) -> tuple[Path, str]:
    """The two halves of `FILE.py:FUNCTION`. BadInput: it has not two, or there is no such file."""
    file, _, name = target.replace("::", ":").rpartition(":")  # as pytest writes it
    if not file or not name:
        known = [f"{file or name}:{function}" for function in _without_arguments(Path(file or name))]
        module, _, function = target.rpartition(".")
        if not (known or Path(target).exists()) and Path(f"{module}.py").is_file():  # as Python imports it
            known = [f"{module}.py:{function}"]
        if (words := target.split()) and len(words) == 2 and Path(words[0]).is_file():
            known = [":".join(words)]
        possible = ", ".join(known or ["FILE.py:FUNCTION"])
        raise BadInput(f"{target!r} names no function; possible: {possible}")
    if not Path(file).is_file():
        raise BadInput(f"{file}: no such file; give FILE.py:FUNCTION")
    if not name.isidentifier():
        owner, _, method = name.rpartition(".")
        told = f"; of a method: step = {owner.lower()}.{method} there, of an object" if owner else ""
        raise BadInput(f"{name!r} is no name of a function; give {file}:FUNCTION{told}")
    return Path(file), name


def _without_arguments(file: Path) -> list[str]:
    """The functions of a file that can be called without arguments, as far as its source tells."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    functions = [(one.name, one.args) for one in statements if isinstance(one, ast.FunctionDef)]
    for one in statements:
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Lambda):
            functions += [(name.id, one.value.args) for name in one.targets if isinstance(name, ast.Name)]
    return [
        name
        for name, taken in functions
        if len(taken.posonlyargs + taken.args) == len(taken.defaults) and None not in taken.kw_defaults
    ]


def choose(kind: str, given: str, possible: Sequence[str]) -> str:
    """Return `given` if it is possible. BadInput: names it, all that is, and what was probably meant."""
    if given in possible:
        return given
    close = [] if given.isdecimal() else get_close_matches(given, possible, n=1)
    meant = "".join(f"; did you mean {name!r}?" for name in close)
    raise BadInput(f"unknown {kind} {given!r}; possible: {', '.join(possible)}{meant}")
