"""Processes that others start and end; whoever asks a moment too late shall not fail by that."""

import time

import psutil


def until(is_so, limit_s=60):
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "this never came to be"
        time.sleep(0.01)


def is_gone(pid):
    """It has ended; whoever adopted it may not have asked for its status yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def asleep(process):
    """The commands `sleep` at any depth below a process that have not ended."""
    return [one for one in process.children(recursive=True) if _sleeps(one)]


def _sleeps(process):
    try:
        return process.name() == "sleep" and not is_gone(process.pid)
    except psutil.NoSuchProcess:
        return False
