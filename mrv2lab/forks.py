"""A function's work in a process of its own, forked from one that has imported what the work needs."""

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")


class Died(Exception):
    """The process ended and had told nothing; `status` as of `multiprocessing.Process.exitcode`."""

    def __init__(self, status: int | None):
        super().__init__(f"its process ended with status {status}")
        self.status = status


def apart(work: Callable[..., Any], *args: Any) -> Any:
    """What a function of a module returns there. It goes on to its end if this process is killed.

    Raises:
        Died: it raised, or the process was killed.
    """
    _FORKS.set_forkserver_preload([work.__module__])  # not when modules are imported: others set theirs
    told, end = _FORKS.Pipe(duplex=False)
    child = _FORKS.Process(target=_tell, args=(end, work, *args))
    child.start()
    end.close()
    try:
        return told.recv()
    except EOFError:
        child.join()
        raise Died(child.exitcode) from None
    finally:
        child.join()


def _tell(end: Connection, work: Callable[..., Any], *args: Any) -> None:
    result = work(*args)
    with suppress(BrokenPipeError):  # nobody waits for it any more
        end.send(result)
