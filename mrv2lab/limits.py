"""Stops a function that does not come to an end, so that a reader's slip costs seconds, not the kernel.

What counts is the time that the function had a processor: on a busy machine a wall clock would blame the
function for the others' work. Only one that has hardly run after a long while is ended by the clock, and that
says nothing about it.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from mrv2lab.errors import CutOff

_P = ParamSpec("_P")
_R = TypeVar("_R")

alone = threading.RLock()
"""Held by whatever runs a model or an audit: process-wide switches are set for it, and JupyterLab lets a
button and a cell run at the same time."""

PATIENCE = 5
"""How often its limit we wait, by the clock, for something that is given less than a fifth of a processor."""


def by_itself(fn: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, which holds `alone` while it runs."""

    @wraps(fn)
    def held(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with alone:
            return fn(*args, **kwargs)

    return held


def cut_off(name: str, waited_s: float) -> CutOff:
    """The error about something that was ended by the clock."""
    return CutOff(
        f"{name} had no result after {waited_s:g} s and was ended: the machine is too busy, or it waits for "
        "something that never comes. Run it again"
    )


@contextmanager
def time_limit(cpu_s: float, name: str, wall_s: float | None = None) -> Iterator[None]:
    """Stop the block when it takes longer. Python code only, in the main thread only.

    Elsewhere, and on systems without `SIGALRM`, there is no limit. Limits may stand inside each other.

    Args:
        cpu_s: seconds for which this thread may run.
        name: of what is stopped, for the error.
        wall_s: seconds by the clock; by default `PATIENCE` times as many.

    Raises:
        TimeoutError: it ran that long.
        CutOff: it did not, and the clock ran out.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return
    limit = _Limit(cpu_s, name, wall_s or PATIENCE * cpu_s)
    handler, timer = signal.signal(signal.SIGALRM, limit.look), signal.getitimer(signal.ITIMER_REAL)
    limit.arm()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # of a limit around this one, which looks for itself


class _Limit:
    """Looks when either time may be over. Who swallows the error meets it again after the same time."""

    def __init__(self, cpu_s: float, name: str, wall_s: float):
        self.cpu_s, self.name, self.wall_s = cpu_s, name, wall_s
        self.end_cpu, self.end_wall = time.thread_time() + cpu_s, time.monotonic() + wall_s

    def arm(self) -> None:
        left = min(self.end_cpu - time.thread_time(), self.end_wall - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))  # 0 would mean never

    def look(self, _signal: int, _frame: Any) -> None:
        has_run, has_waited = time.thread_time() >= self.end_cpu, time.monotonic() >= self.end_wall
        if has_run or has_waited:
            self.end_cpu, self.end_wall = self.end_cpu + self.cpu_s, self.end_wall + self.wall_s
        self.arm()
        if has_run:
            raise TimeoutError(f"{self.name} ran for {self.cpu_s:g} s without a result and was stopped")
        if has_waited:
            raise cut_off(self.name, self.wall_s)
