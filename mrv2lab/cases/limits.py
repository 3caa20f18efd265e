"""Stops a function that does not come to an end, so that a reader's slip costs seconds, not the kernel."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def time_limit(seconds: float, name: str) -> Iterator[None]:
    """Raise `TimeoutError` in the block when it takes longer. Python code only, in the main thread only.

    Elsewhere, and on systems without `SIGALRM`, there is no limit.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(_signal: int, _frame: Any) -> None:
        raise TimeoutError(f"{name} gave no result within {seconds:g} s and was stopped")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
