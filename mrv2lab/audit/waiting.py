"""Says where a step waits for something that never comes: a queue that the audit has emptied, for example.

An audit runs a step more often than requests come, and Python cannot be asked to leave a call that waits.
"""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from mrv2lab.audit.lines import users_running
from mrv2lab.audit.report import Place

EVERY_S = 15.0  # so that is told within half a minute
_IDLE = 0.05  # of the time between two looks, at most, that a process works which waits
_ADVICE = (
    "An audit runs a step more often than requests come: what it takes from a queue, reset() is to put back"
)


class Look(NamedTuple):
    """Where a thread is in the user's code, and how long its process has worked by then."""

    frame: int  # its `id`: another call of the same line is another frame
    place: Place
    cpu_s: float

    @classmethod
    def at(cls, thread: int) -> "Look | None":
        """At a thread, by number; None where it runs no function of the user's."""
        if (frame := users_running(sys._current_frames().get(thread))) is None:
            return None
        code = frame.f_code
        place = Place(code.co_filename, frame.f_lineno, code.co_name)
        return cls(id(frame), place, time.process_time())

    def has_waited(self, before: "Look | None", passed_s: float) -> bool:
        """Whether nothing has happened since another look."""
        is_there = before is not None and (before.frame, before.place) == (self.frame, self.place)
        return is_there and before is not None and self.cpu_s - before.cpu_s < _IDLE * passed_s


class Waiting:
    """While it is entered, `tell` is told once if the thread that has entered it waits from one look to the
    next."""

    def __init__(self, tell: Callable[[str], object], every_s: float = EVERY_S):
        self._tell, self._every_s, self._is_over = tell, every_s, threading.Event()

    def __enter__(self) -> None:
        watched = threading.get_ident()
        threading.Thread(target=self._watch, args=(watched,), name="waiting", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._is_over.set()

    def _watch(self, thread: int) -> None:
        before = None
        while not self._is_over.wait(self._every_s):
            now = Look.at(thread)
            if now is not None and now.has_waited(before, self._every_s):
                self._tell(
                    f"the step has been waiting for {self._every_s:.0f} s or more at {now.place}. {_ADVICE}"
                )
                return
            before = now
