"""A question that is asked in a fork of this very process, which then knows all that this one does."""

import io
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress

import torch

LIMIT_S = 25.0


def forked(ask: Callable[[], bool]) -> bool:
    """The answer; False where the fork dies. Nothing that it does stays, and nothing that it says is heard.
    Not for a process that has used a GPU: its fork cannot. TimeoutError: none after `LIMIT_S`."""
    told, tell = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the fork needs none of them
        child = os.fork()
    if not child:
        _answer(ask, tell)
    os.close(tell)
    try:
        if not select.select([told], [], [], LIMIT_S)[0]:
            raise TimeoutError
        return os.read(told, 1) == b"1"
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)


def _answer(ask: Callable[[], bool], tell: int) -> None:
    """In the fork: say it, and leave without what a process does when it ends."""
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        sys.stdout = sys.stderr = io.StringIO()  # Jupyter's would go on telling
        torch.set_num_threads(1)  # those of the other process are not here
        os.write(tell, b"1" if ask() else b"0")
    finally:
        os._exit(0)
