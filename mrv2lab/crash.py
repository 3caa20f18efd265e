"""Runs that raised: what was said, and whether it is the crash that the bug states.

A run that raised shows its bug only in the bug's own words and at its own place. Anything else says nothing
about it: a name that is not there, no memory, no GPU, a limit of the emulator or of time. That is `failed`.
"""

import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mrv2lab.results import Verdict

TAIL = 60  # lines that are kept of a traceback, or of an engine's log

_FRAME = re.compile(r'File "<?([^",>]+)[^"]*", line \d+, in (\S+)')  # edited sources are `<name, edited>`
_MODULE = re.compile(r"(?:\w+\.)+(?=\w+:)")  # a traceback says `torch.AcceleratorError: ...`
_MARKS = re.compile(r"[\s~^]*[~^][\s~^]*")  # below a line of source
_PATH = re.compile(r"(?<![\w./])/(?:[\w.@+-]+/)*?((?:[\w.@+-]+/){0,2}[\w.@+-]+)(?![\w/.@+-])")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")


@dataclass(frozen=True)
class Crash:
    """The crash that shows a bug."""

    # how the exception may begin, its type first and without a module. CUDA has several words for one cause.
    said: tuple[str, ...]
    # file and function that was running, `runner/model.py in forward`; empty for anywhere. It is looked for
    # in the whole stack: a GPU works asynchronously, and tells of it at a later line, possibly in another
    # function.
    within: str = ""

    def is_shown_by(self, message: str, stack: Iterable[str]) -> bool:
        """Whether it is this one: `Type: words`, and what Python printed, tracebacks among other lines."""
        frames = [f"/{frame[1]} in {frame[2]}" for line in stack if (frame := _FRAME.search(line))]
        is_there = not self.within or any(frame.endswith(f"/{self.within}") for frame in frames)
        return is_there and _MODULE.sub("", message, count=1).startswith(self.said)


def of_cuda(*words: str) -> tuple[str, ...]:
    """How CUDA says these words: through torch, or through Triton at a launch."""
    speakers = (
        "AcceleratorError: CUDA error",
        "RuntimeError: CUDA error",
        "RuntimeError: Triton Error [CUDA]",
    )
    return tuple(f"{speaker}: {word}" for speaker in speakers for word in words)


WILD_POINTER = of_cuda(
    "an illegal memory access was encountered",
    "operation not supported on global/shared address space",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
)
"""What CUDA says of an address that is none: which of them depends on where it points and who reads."""


def verdict_of(message: str, stack: Iterable[str], crash: Crash | None) -> Verdict:
    """`crash` if it is the stated one, else `failed`; always `failed` where none is stated."""
    return "crash" if crash is not None and crash.is_shown_by(message, stack) else "failed"


def ending(error: BaseException, crash: Crash | None) -> dict[str, Any]:
    """The fields `verdict`, `message` and `log_tail` of a run that raised this."""
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    told = "".join(traceback.format_exception(error)).splitlines()
    stack = [without_places(line) for line in told if not _MARKS.fullmatch(line)]
    return {"verdict": verdict_of(message, stack, crash), "message": message, "log_tail": stack[-TAIL:]}


def without_places(line: str) -> str:
    """The line without what tells of the machine: of absolute paths the end is left, of addresses nothing."""
    return _ADDRESS.sub("<address>", _PATH.sub(r"\1", line))
