"""What a worker and its launcher say to each other.

A worker is one process with one engine: `python -m mrv2lab.live.worker SPEC.json`. The file holds a `Job`.
On stderr a line `progress 0.35 capturing graphs` is progress, everything else is log. The last line of stdout
is a JSON object, the result; it counts if the worker then ends with exit status 0.

A worker begins with `die_with_parent()`, `claim_stdout()` and `read_job()`. Before it takes anything of the
GPU it calls `await_turn()`: what comes before, imports above all, may be done while others use it.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from mrv2lab.errors import BadInput

GUARD = "MRV2LAB_LIVE_GUARD"  # in the worker's environment: the process id of its guard, see `guard`
TURN = "MRV2LAB_LIVE_TURN"  # in the worker's environment: a file that is there once it is its turn
GRACE_S = 1.0  # between SIGTERM and SIGKILL, for whatever has to be ended
WATCH_S = 0.5
TURN_POLL_S = 0.05
_PROGRESS = re.compile(r"progress (0(?:\.\d+)?|1(?:\.0+)?)(?: (.*))?")


@dataclass(frozen=True)
class Job:
    """One run of the engine."""

    case: str  # name of a case, and `variant` one of its variants
    variant: str
    env: dict[str, str] = field(default_factory=dict)  # added to the worker's environment
    settings: dict[str, Any] = field(default_factory=dict)  # whatever else it needs to know. JSON only
    timeout_s: float = 300  # for the whole run, from the start of the process
    memory_gib: float = 24  # resident, of the worker and all its children; what they share counts for each


def write_job(job: Job, file: Path) -> None:
    """Raises `BadInput` if the settings hold anything that JSON has no form for."""
    try:
        file.write_text(json.dumps(asdict(job)))
    except (TypeError, ValueError) as error:
        raise BadInput(f"settings of {job.case} {job.variant} cannot be written as JSON: {error}") from error


def read_job(file: Path) -> Job:
    """The job in a file that `write_job` wrote."""
    return Job(**json.loads(file.read_text()))


def await_turn() -> None:
    """Return once the GPU is this worker's to use; at once in a worker started by hand."""
    turn = Path(os.environ.get(TURN, "/"))
    while not turn.exists():
        time.sleep(TURN_POLL_S)


def tell_progress(share: float, doing: str) -> None:
    """Say how far the worker is, 0 to 1, and what it does now."""
    # The first end of line ends whatever another process left open there, a progress bar for example.
    sys.stderr.write(f"\nprogress {share:.2f} {doing}\n")
    sys.stderr.flush()


def read_progress(line: str) -> tuple[float, str] | None:
    """What `tell_progress` said, or None for any other line."""
    found = _PROGRESS.fullmatch(line.strip())
    return (float(found[1]), found[2] or "") if found else None


def claim_stdout() -> TextIO:
    """A way to stdout for the result alone. Whatever else is printed to stdout goes to stderr from now on.

    vLLM logs to stdout, its children too, and they may still do so after the result.
    """
    result = os.fdopen(os.dup(1), "w")
    sys.stdout.flush()
    os.dup2(2, 1)
    return result


def tell_result(document: dict[str, Any], to: TextIO = sys.stdout) -> None:
    """Write the result, one line. After `claim_stdout`, `to` must be what that returned."""
    to.write(f"\n{json.dumps(document)}\n")
    to.flush()


def die_with_parent() -> None:
    """From now on end this process and its group within a second of the guard's end. To be called first.

    When the launcher goes, the guard does this work; here is the case that the guard itself is killed.
    Without a guard, in a worker started by hand, nothing happens.

    Linux could kill the worker (PR_SET_PDEATHSIG), but the worker alone and at once, and then nobody would be
    left who ends vLLM's engine processes. Hence a thread.
    """
    guard = os.environ.pop(GUARD, None)  # not for the children: theirs is this process
    if guard is not None:
        threading.Thread(target=_watch, args=(int(guard),), name="die_with_parent", daemon=True).start()


def _watch(guard: int) -> None:
    """End the group once the guard is no ancestor. It need not be the parent: profilers stand between."""
    while guard in _ancestors():
        time.sleep(WATCH_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _ancestors() -> list[int]:
    try:
        return [parent.pid for parent in psutil.Process().parents()]
    except psutil.NoSuchProcess:
        return _ancestors()  # one of them has just ended, so the line is another one now
