"""Stands between launcher and worker, so that nothing outlives either: `guard LAUNCHER_PID COMMAND...`.

An engine that hangs may hold Python's global lock and cannot end itself, and it starts processes in
sessions of their own. So a process that does nothing else starts the worker, adopts every orphan below it,
and ends all of them when the worker has ended, when it is asked to (SIGTERM), or when the launcher is gone,
even by SIGKILL.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import NoReturn

import psutil

from mrv2lab.live.protocol import GRACE_S, GUARD

POLL_S = 0.05
_PR_SET_CHILD_SUBREAPER = 36


def main(launcher: int, command: list[str]) -> NoReturn:
    """Run the command and end as it ends: with its exit status, or by the same signal."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    _adopt_orphans()
    env = os.environ | {GUARD: str(os.getpid())}
    worker = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True).pid
    status = None
    while status is None and not asked and os.getppid() == launcher:
        time.sleep(POLL_S)
        status = _reap().get(worker)
    _end_all(worker)
    _leave(1 if status is None else os.waitstatus_to_exitcode(status))


def _adopt_orphans() -> None:
    """A process whose parent has ended becomes our child. Linux; elsewhere the worker's group must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _reap() -> dict[int, int]:
    """Wait status by process id, of every child that has ended."""
    ended = {}
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended[child[0]] = child[1]
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
        with suppress(psutil.NoSuchProcess):
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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
