"""A function's work in a process of its own: a fork of one that has imported what the work needs.

To import torch takes longer than most of what is done there.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_starting = threading.Lock()


class Died(Exception):
    """The process ended and had told nothing; `status` as of `multiprocessing.Process.exitcode`."""

    def __init__(self, status: int | None):
        super().__init__(f"its process ended with status {status}")
        self.status = status


def apart(work: Callable[..., Any], *args: Any, limit_s: float | None = None) -> Any:
    """What a function of a module returns there. It goes on to its end if this process is killed.

    Args:
        limit_s: after so long by the clock its process is killed, with all that it has started.

    Raises:
        Died: it raised, or the process was killed.
        TimeoutError: because of the limit.
    """
    told, end = _FORKS.Pipe(duplex=False)
    child = _started([work.__module__], _tell, end, work, *args)
    end.close()
    try:
        if not told.poll(limit_s):
            _kill(child)
            raise TimeoutError(f"no result after {limit_s} s")
        return told.recv()
    except EOFError:
        child.join()
        raise Died(child.exitcode) from None
    finally:
        child.join()


class Fork:
    """A function of a module that runs there, with what it starts, and ends when this process does.

    Args:
        log: a file for all that it prints.
        env: added to this process's environment.
        modules: what to import before the first fork, beside that of `work`.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        *args: Any,
        log: Path,
        env: Mapping[str, str] = MappingProxyType({}),
        modules: Iterable[str] = (),
    ) -> None:
        far, self._lifeline = _FORKS.Pipe(duplex=False)
        preload = [work.__module__, *modules]
        self._child = _started(preload, _live, far, os.environ | env, log, work, *args)
        far.close()
        self.sentinel = self._child.sentinel
        """For `multiprocessing.connection.wait`: ready when it has ended."""

    @property
    def status(self) -> int | None:
        """As of `multiprocessing.Process.exitcode`; None while it runs."""
        return self._child.exitcode

    def end(self) -> None:
        """Kill it, unless it has ended, and what it has started."""
        _kill(self._child)
        self._lifeline.close()


def _started(modules: list[str], work: Callable[..., Any], *args: Any) -> BaseProcess:
    """The main module stays here. There it would be run once more: a script without a guard, all it does."""
    with _starting:
        _FORKS.set_forkserver_preload(modules)  # not when modules are imported: others set theirs
        child = _FORKS.Process(target=work, args=args)
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            child.start()
        finally:
            sys.modules["__main__"] = main
    return child


def _kill(child: BaseProcess) -> None:
    if child.exitcode is None:
        with suppress(ProcessLookupError):  # it has no group yet
            os.killpg(child.pid or 0, signal.SIGKILL)
    child.kill()
    child.join()


def _tell(end: Connection, work: Callable[..., Any], *args: Any) -> None:
    os.setsid()
    result = work(*args)
    with suppress(BrokenPipeError):  # nobody waits for it any more
        end.send(result)


def _live(
    far: Connection, environment: dict[str, str], log: Path, work: Callable[..., Any], *args: Any
) -> None:
    def end_with_parent() -> None:
        with suppress(EOFError):
            far.recv()
        os.killpg(0, signal.SIGKILL)

    os.setsid()
    gc.freeze()  # captures collect garbage: not among all that was imported
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    threading.Thread(target=end_with_parent, daemon=True).start()
    work(*args)
