"""One worker from its start to its end: hear what it says, bound what it takes, leave no process behind."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from mrv2lab.live import log
from mrv2lab.live.protocol import GRACE_S, TURN, Job, read_progress, write_job

POLL_S = 0.1
MEMORY_POLL_S = 1.0
PATIENCE_S = GRACE_S + 5  # for the guard to end the worker's processes; then we do
DRAIN_S = 2.0
CHUNK = 1 << 16  # bytes, what a pipe holds
LONGEST_RESULT = 16 << 20  # bytes
Tell = Callable[[Job, float, str], object]


@dataclass(frozen=True)
class Crash:
    """A worker that ended, or was ended, without a result.

    Attributes:
        reason: `exit status 1`, `SIGKILL`, `timeout after 300 s`, `more than 24 GiB of memory`, or
            `exit status 0 without a result`.
    """

    reason: str
    message: str  # the engine's own error line, else the last line of the log
    log_tail: tuple[str, ...]  # at most the last 40 lines of what was printed


@dataclass(frozen=True)
class Ended:
    """What became of a job: either `document`, the worker's result, or `crash`."""

    job: Job
    wall_s: float
    document: dict[str, Any] | None = None
    crash: Crash | None = None


def attend(
    job: Job, command: Sequence[str], stop: threading.Event, tell: Tell, turns: threading.Semaphore
) -> Ended:
    """Run a job to its end. `tell` is called with its progress; it must not raise.

    Args:
        command: starts a worker, given the path of SPEC.json as its last argument.
        stop: once set, the worker is ended.
        turns: one is taken as soon as there is one, and given back at the end. The job's time runs from then.

    Raises:
        BadInput: the job's settings have no form in JSON.
    """
    with tempfile.TemporaryDirectory(prefix="mrv2lab-live-") as folder:
        spec = Path(folder) / "SPEC.json"
        write_job(job, spec)
        worker = _Worker(job, [*command, str(spec)], tell, Path(folder) / "TURN")
        try:
            why = worker.watch(stop, turns)
        finally:
            worker.end()
            if worker.has_turn:
                turns.release()
        return worker.ended(why)


class _Worker:
    """A worker under its guard, and what it has said so far."""

    def __init__(self, job: Job, command: Sequence[str], tell: Tell, turn: Path):
        self._job, self._tell, self._turn = job, tell, turn
        self.has_turn = False
        self._start = time.monotonic()
        self._log = log.Log()
        self._last = ""  # line of stdout
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "mrv2lab.live.guard", str(os.getpid()), *command],
            env=os.environ | job.env | {TURN: str(turn)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal goes to a whole group, and is for us to handle
        )
        self._tree = _Tree(self._guard.pid)
        self._pipes = selectors.DefaultSelector()
        self._listen(self._guard.stdout, log.Lines(LONGEST_RESULT), self._hear_stdout)
        self._listen(self._guard.stderr, log.Lines(4 * log.LONGEST), self._hear_stderr)

    # ---- while it runs ----

    def watch(self, stop: threading.Event, turns: threading.Semaphore) -> str | None:
        """Return when the worker has ended, or why it has to be ended."""
        while self._guard.poll() is None:
            if not self.has_turn and turns.acquire(blocking=False):
                self.has_turn, self._start = True, time.monotonic()
                self._turn.touch()
            self._read()
            if why := self._too_much(stop):
                return why
        return None

    def _too_much(self, stop: threading.Event) -> str | None:
        if stop.is_set():
            return "stopped"
        if self.has_turn and time.monotonic() - self._start > self._job.timeout_s:
            return f"timeout after {self._job.timeout_s:g} s"
        if self._tree.rss_bytes() > self._job.memory_gib * 2**30:
            return f"more than {self._job.memory_gib:g} GiB of memory"
        return None

    # ---- what it says ----

    def _listen(self, pipe: IO[bytes] | None, lines: log.Lines, hear: Callable[[str], None]) -> None:
        assert pipe is not None  # both are PIPE above
        self._pipes.register(pipe, selectors.EVENT_READ, (lines, hear))

    def _read(self) -> None:
        """Take at most one chunk of each pipe, so that no flood keeps us from the bounds."""
        for key, _ in self._pipes.select(POLL_S):
            lines, hear = key.data
            chunk = os.read(key.fd, CHUNK)
            if not chunk:
                self._pipes.unregister(key.fileobj)
            for line in lines.feed(chunk) if chunk else lines.rest():
                hear(line)

    def _hear_stderr(self, line: str) -> None:
        if progress := read_progress(line):
            self._tell(self._job, *progress)
        else:
            self._log.add(line)

    def _hear_stdout(self, line: str) -> None:
        """Any line may be the last one, and vLLM writes its log here unless told otherwise."""
        if line.strip():
            self._last = line
            if not line.startswith("{"):
                self._log.add(line)

    # ---- its end ----

    def end(self) -> None:
        """Leave no process of this worker behind, and read what is still in the pipes."""
        self._guard.terminate()  # it ends its tree, then itself; nothing if it has ended
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(PATIENCE_S)
        self._tree.kill()  # someone killed the guard, or it is stuck
        self._guard.kill()
        self._guard.wait()
        self._drain()

    def _drain(self) -> None:
        """Every writer is dead, so the pipes end; a bound in case one escaped us after all."""
        deadline = time.monotonic() + DRAIN_S
        while self._pipes.get_map() and time.monotonic() < deadline:
            self._read()
        self._pipes.close()
        for pipe in (self._guard.stdout, self._guard.stderr):
            if pipe:
                pipe.close()

    def ended(self, why: str | None) -> Ended:
        """The result, unless the worker had to be ended or did not end well."""
        wall_s = time.monotonic() - self._start
        reason = why or _reason(self._guard.returncode)
        document = _document(self._last)
        if reason is None and document is not None:
            return Ended(self._job, wall_s, document=document)
        reason = reason or "exit status 0 without a result"
        message = self._log.message() or f"{reason}, and not a word"
        return Ended(self._job, wall_s, crash=Crash(reason, message, tuple(self._log.tail)))


class _Tree:
    """The processes below a guard, looked up once a second."""

    def __init__(self, guard: int):
        self._guard = psutil.Process(guard)
        self._below: list[psutil.Process] = []
        self._rss_bytes = 0
        self._due = time.monotonic() + MEMORY_POLL_S

    def rss_bytes(self) -> int:
        """Resident memory of all of them, at most a second old."""
        if time.monotonic() > self._due:
            with suppress(psutil.NoSuchProcess):
                self._below = self._guard.children(recursive=True)
            self._rss_bytes = sum(_rss_bytes(process) for process in self._below)
            self._due = time.monotonic() + MEMORY_POLL_S
        return self._rss_bytes

    def kill(self) -> None:
        """Kill what still runs of them. psutil tells a process from a later one with the same number."""
        with suppress(psutil.NoSuchProcess):
            self._below += self._guard.children(recursive=True)
        for process in self._below:
            with suppress(psutil.Error):
                process.kill()


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended, or is somebody else's
        return 0


def _reason(code: int) -> str | None:
    """None for exit status 0. A negative code is the number of a signal."""
    if code >= 0:
        return f"exit status {code}" if code else None
    try:
        return signal.Signals(-code).name
    except ValueError:  # one of the real-time signals, which have no names
        return f"signal {-code}"


def _document(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
