"""Runs jobs on the real engine, each in a process of its own, and turns whatever happens into a result.

A thread attends each worker, because pipes must be read and bounds kept while the caller does something else.
Progress is handed over in the caller's thread. However the caller leaves, its workers end: it ends them on an
exception, and their guards do when it is killed.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait

from mrv2lab.errors import BadInput
from mrv2lab.live.attend import Crash, Ended, attend
from mrv2lab.live.protocol import Job

__all__ = ["Crash", "Ended", "Job", "run", "run_all"]

WORKER = (sys.executable, "-m", "mrv2lab.live.worker")
POLL_S = 0.1
UNTOLD = 1000  # words of progress kept for a caller who is busy; older ones are dropped
OnProgress = Callable[[Job, float, str], object]


def run(job: Job, *, command: Sequence[str] = WORKER, on_progress: OnProgress | None = None) -> Ended:
    """Run one job. Arguments and errors as `run_all`."""
    [ended] = run_all([job], at_once=1, command=command, on_progress=on_progress)
    return ended


def run_all(
    jobs: Sequence[Job],
    *,
    at_once: int,
    ahead: int = 0,
    command: Sequence[str] = WORKER,
    on_progress: OnProgress | None = None,
) -> Iterator[Ended]:
    """Run jobs, several at once, and yield what became of them in the order of the jobs.

    The first job starts when the first result is asked for. Closing or dropping the iterator, as a loop does
    that is left early, ends every worker; so does an exception in here, Ctrl-C included.

    Args:
        at_once: how many workers run at the same time.
        ahead: how many more are started, and wait for their turn (`protocol.await_turn`).
        command: starts a worker, given the path of SPEC.json as its last argument.
        on_progress: called in this thread with a job, how far it is (0 to 1) and what it does now.

    Raises:
        BadInput: `at_once` is less than 1, or a job's settings have no form in JSON.
    """
    if at_once < 1:
        raise BadInput(f"at_once is {at_once}; at least one worker must run")
    return _results(_Crew(jobs, command, at_once, ahead), on_progress or (lambda *_: None))


def _results(crew: "_Crew", on_progress: OnProgress) -> Iterator[Ended]:
    try:
        crew.start()
        for turn in crew.turns:
            while not wait([turn], POLL_S).done:
                crew.hand_over(on_progress)
            crew.hand_over(on_progress)
            yield turn.result()
    finally:
        crew.stop()


class _Crew:
    """Threads that take jobs in turn."""

    def __init__(self, jobs: Sequence[Job], command: Sequence[str], at_once: int, ahead: int):
        self.turns: list[Future[Ended]] = [Future() for _ in jobs]
        self._waiting = deque(zip(jobs, self.turns, strict=True))
        self._command = command
        self._stop = threading.Event()
        self._gpu = threading.Semaphore(at_once)
        self._told: deque[tuple[Job, float, str]] = deque(maxlen=UNTOLD)
        # Daemons: a caller that ends in the middle does not wait for hours of work, and the guards clean up.
        self._threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(min(at_once + ahead, len(jobs)))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every worker and wait until they are gone."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:  # an exception may come before it was started
                thread.join()

    def hand_over(self, on_progress: OnProgress) -> None:
        for _ in range(len(self._told)):  # not until it is empty: a flood would keep us here
            on_progress(*self._told.popleft())

    def _work(self) -> None:
        while self._waiting and not self._stop.is_set():
            try:
                job, turn = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            try:
                turn.set_result(attend(job, self._command, self._stop, self._tell, self._gpu))
            except Exception as error:
                turn.set_exception(error)

    def _tell(self, job: Job, share: float, doing: str) -> None:
        self._told.append((job, share, doing))
