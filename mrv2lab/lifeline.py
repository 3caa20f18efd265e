"""Stands between a process and the work that it asked for: none of it outlives both, or grows without end.

Work that hangs may hold Python's global lock and cannot end itself, and it may start processes in sessions of
their own. So a process that does nothing else starts the work, adopts every orphan below it, and ends all of
them: when the work has ended, when it is asked to (SIGTERM), when whoever asked for the work is gone, even by
SIGKILL, and when they have more memory or have said more than they may.
"""

import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import psutil

from mrv2lab.errors import BadInput

POLL_S = 0.05
LOOK_S = 0.5  # between two looks at memory: a look costs milliseconds
GRACE_S = 1.0  # between SIGTERM and SIGKILL
MEMORY = "MRV2LAB_MEMORY_GIB"  # in the environment: how much the work may have
SHARE = 0.8  # of the memory that is free at the start, where nothing is said; the rest is for whoever asked
OUTPUT = 64 << 20  # bytes that work may say to a file of its own
PATIENCE_S = 60  # with a keeper that was asked to end its work
REFUSED = "it asked for more memory than it may have, and was stopped"
_CGROUP = Path("/sys/fs/cgroup")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def keep(
    start: Callable[[], int],
    is_gone: Callable[[], bool],
    bound: int,
    *,
    pipe: int | None = None,
    folder: Path | None = None,
    said: Sequence[int] = (),
) -> NoReturn:
    """Start the work and end as it ends, with its exit status or by the same signal; if ended here with 1.

    Args:
        start: makes a process in a session of its own, as this one is in, and returns its id.
        is_gone: whether nobody wants the work any more. Asked every `POLL_S` seconds.
        bound: bytes of memory that it may have.
        pipe: asked at once when this can be read.
        folder: what whoever is gone would have removed.
        said: descriptors of files that hold what the work says and nothing else.
    """
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # elsewhere the worker's group must do
    look = time.monotonic() + LOOK_S
    worker = start()
    wakes, wake = os.pipe()
    for end in (wakes, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    ready = [wakes] if pipe is None else [wakes, pipe]
    status = why = None
    while (status := _reap().get(worker)) is None and not asked and not is_gone():
        if (size := max((os.fstat(file).st_size for file in said), default=0)) > OUTPUT:
            why = f"it had said {size >> 20} MiB, and may say {OUTPUT >> 20}"
            break
        if time.monotonic() > look:
            if has := _too_much(bound):
                why = f"it had {_gib(has)} GiB of host memory, and may have {_gib(bound)}"
                break
            look = time.monotonic() + LOOK_S
        select.select(ready, [], [], POLL_S)
        with suppress(BlockingIOError):
            os.read(wakes, 4096)
    _end_all(worker)
    if why:
        print(f"\nit was ended: {why}", file=sys.stderr, flush=True)  # the last line of a log
    if folder is not None and is_gone():
        _remove(folder)
    _leave(1 if status is None else os.waitstatus_to_exitcode(status))


def main(launcher: int, command: Sequence[str], env: Mapping[str, str], folder: Path) -> NoReturn:
    """Keep a command for the launcher, whose child this process is and whose folder of temporary files it
    removes where the launcher cannot; `env` is added to the command's environment."""

    def start() -> int:
        return subprocess.Popen(
            command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, start_new_session=True
        ).pid

    keep(start, lambda: os.getppid() != launcher, memory(), folder=folder)


def _remove(folder: Path) -> None:
    """A folder, and those in it that forbid it."""
    for below, folders, _ in os.walk(folder):
        for inner in (Path(below, name) for name in folders):
            if not inner.is_symlink():  # it has no mode of its own, and what it leads to is not ours
                with suppress(OSError):
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def kill_below(keeper: int) -> None:
    """All that a keeper keeps, where it does not."""
    with suppress(psutil.Error):
        for process in psutil.Process(keeper).children(recursive=True):
            with suppress(psutil.Error):
                process.kill()


def die_with_parent() -> None:
    """To be called by the worker: it has no use of its keeper's death either. Linux only."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def memory() -> int:
    """Bytes that work may have: what the user says, or `SHARE` of what is free. BadInput: no number."""
    if said := os.environ.get(MEMORY):
        try:
            if 0 < float(said) < 2**30:
                return int(float(said) * 2**30)
        except ValueError:
            pass
        raise BadInput(f"{MEMORY}={said}: possible: a number of GiB above 0")
    return int(SHARE * free())


@contextmanager
def memory_limit() -> Iterator[None]:
    """Refuse the block more memory than `memory` grants, so that a reader's slip does not take the machine.

    Linux only: elsewhere there is no limit. It is the process that is refused, so other threads are as well.
    Limits may stand inside each other. MemoryError: it asked for more.
    """
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if sys.platform == "linux":
        limit = int(psutil.Process().memory_info().data) + memory()
        limit = limit if soft == resource.RLIM_INFINITY else min(soft, limit)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    except Exception as error:
        if was_refused(error):
            raise MemoryError(REFUSED) from error
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def was_refused(error: BaseException) -> bool:
    """Whether it is for lack of memory. Then a `memory_limit` is lifted, for to tell of it takes some too."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch says a RuntimeError
        lift_memory_limit()
        return True
    return False


def lift_memory_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def free() -> int:
    """Bytes of memory that are free here, or in the container."""
    there = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, StopIteration):  # no container, or one without a limit
        limit, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = map(str.split, (_CGROUP / "memory.stat").read_text().splitlines())
        cached = next(int(number) for name, number in lines if name == "inactive_file")
        there = min(there, limit - used + cached)
    return there


def _too_much(bound: int) -> int:
    """Bytes that all below have, where that is more than they may; else 0."""
    below = _below()
    if sum(map(_at_most, below)) <= bound:
        return 0
    has = sum(map(_has, below))
    return has if has > bound else 0


def _at_most(process: psutil.Process) -> int:
    """No less than `_has`, and cheap: that walks through all pages of a process, which may have to wait."""
    with suppress(OSError):
        lines = map(str.split, Path(f"/proc/{process.pid}/status").read_text().splitlines())
        if sizes := [1024 * int(words[1]) for words in lines if words[:1] in (["VmRSS:"], ["VmSwap:"])]:
            return sum(sizes)
    return _has(process)


def _has(process: psutil.Process) -> int:
    """Of memory that several share its part, where the system tells it."""
    try:
        lines = map(str.split, Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines())
        return sum(1024 * int(words[1]) for words in lines if words[0] in ("Pss:", "SwapPss:"))
    except OSError:
        with suppress(psutil.Error):
            return int(process.memory_info().rss)
    return 0


def _gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:.1f}" if gib >= 0.1 else f"{gib:.1g}"


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap() -> dict[int, int]:
    """Wait status by process id, of every child that has ended."""
    ended = dict[int, int]()
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.update([child])
    return ended


def _end_all(worker: int) -> None:
    """Ask every process below us to end, wait a little, and kill until none is left."""
    _send(signal.SIGTERM, worker)
    deadline = time.monotonic() + GRACE_S
    while _below():
        if time.monotonic() > deadline:
            _send(signal.SIGKILL, worker)
        time.sleep(POLL_S)


def _below() -> list[psutil.Process]:
    _reap()
    return list(psutil.Process().children(recursive=True))


def _send(number: signal.Signals, worker: int) -> None:
    for process in _below():
        with suppress(psutil.Error):  # gone, or somebody else's by now
            process.send_signal(number)
    with suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(worker, number)


def _leave(code: int) -> NoReturn:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker may have left a core file, we do not
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
