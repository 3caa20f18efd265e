"""What is kept of a worker's words: the last lines, and the one line that says what went wrong."""

import re
from collections import deque

from mrv2lab.crash import TAIL

LONGEST = 2000  # of a line, in characters

# "(EngineCore_DP0 pid=123) ", "[rank0]: ", "ERROR 11-21 07:16:24 [core.py:304] ", in any order and number.
_PREFIX = re.compile(
    r"(?:\([^()]*\bpid=\d+[^()]*\)\s?"
    r"|\[rank\d+\]:\s?"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]]*\]\s?)+"
)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# The last line of a Python traceback, or what the C++ runtime says when nobody caught an exception.
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|OutOfResources)(?:: .*)?|\s*what\(\):\s+(?P<cpp>.*)")
_ROOT = re.compile(r"CUDA|Triton|assert|illegal", re.IGNORECASE)
_NO_ROOT = re.compile(r"ImportError|ModuleNotFoundError")  # vLLM tries imports, and may say so
_RELAY = re.compile(r"root cause|^RuntimeError: cancelled$", re.IGNORECASE)  # of another process's error


class Lines:
    """Cuts a stream of bytes into lines. What a line has beyond `longest` bytes is dropped as it comes."""

    def __init__(self, longest: int):
        self._longest = longest
        self._open = bytearray()

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that this chunk completes."""
        *ends, rest = chunk.split(b"\n")
        lines = [self._close(end) for end in ends]
        self._extend(rest)
        return lines

    def rest(self) -> list[str]:
        """The last line, if it has no end."""
        return [self._close(b"")] if self._open else []

    def _extend(self, part: bytes) -> None:
        self._open += part[: self._longest - len(self._open)]

    def _close(self, end: bytes) -> str:
        self._extend(end)
        line = self._open.decode(errors="replace")
        self._open.clear()
        return line


class Log:
    """The last `TAIL` lines of a log of any length, and its most telling line."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL)
        self._error: str | None = None
        self._weight = 0

    def add(self, line: str) -> None:
        """Take in the next line. Of a progress bar only its last state counts; blank lines do not."""
        line = _COLOUR.sub("", line.rstrip().rsplit("\r", 1)[-1])[:LONGEST]
        if line:
            self.tail.append(line)
            self._weigh(_PREFIX.sub("", line, count=1) if _PREFIX.match(line) else line)

    def message(self) -> str | None:
        """The engine's own error, else the last line, else None: not a word."""
        return self._error or (self.tail[-1] if self.tail else None)

    def _weigh(self, line: str) -> None:
        """Of errors of the same weight the last one counts: tracebacks end with what was raised."""
        found = _ERROR.fullmatch(line)
        if found and (weight := _weight(line)) >= self._weight:
            self._error, self._weight = found["cpp"] or line, weight


def _weight(error: str) -> int:
    """An error that names the GPU, a kernel or an assertion is nearer to the cause than what it brings on."""
    names_root = bool(_ROOT.search(error)) and not _NO_ROOT.match(error)
    return 2 * names_root + (not _RELAY.search(error))
