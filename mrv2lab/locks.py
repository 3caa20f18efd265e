"""Locks on files, which end with their process: who has to wait for one says so, and not for ever."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from mrv2lab.errors import BadInput

QUIET_S = 5.0  # others mostly are done sooner


@contextmanager
def held(path: Path, limit_s: float) -> Iterator[None]:
    """Hold a lock in the block. BadInput: another process still had it after `limit_s`; OSError."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=QUIET_S)
    except Timeout:
        print(f"waiting for another process, which holds {path}", file=sys.stderr, flush=True)
        try:
            lock.acquire(timeout=limit_s)
        except Timeout as error:
            waited = f"another process has held it for {limit_s / 60:.0f} min"
            raise BadInput(f"{path}: {waited}; end that one, or wait until it has ended") from error
    try:
        yield
    finally:
        lock.release()
