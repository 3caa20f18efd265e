"""Processes that others start and end; whoever asks a moment too late shall not fail by that."""

import time

import psutil


def until(is_so, limit_s=60):
    """Whether it came to be in that time."""
    end = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < end:
        time.sleep(0.01)
    return is_so()


def is_gone(pid):
    """It has ended: a zombie has too, in a container nobody may collect it."""
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
