"""A process's server of forks as a fork of that process, and no Python that imports all of it anew.

For processes that are forks themselves, of one that has imported this package. What is under test there is
what such a server is asked for and who outlives whom, not how long Python takes to start.

With IN_PLACE in the environment `os.execvp` of `python -P -m MODULE ...` is that module, in the same process.
"""

import functools
import gc
import os
import runpy
import signal
import sys
import tempfile
import threading
from itertools import pairwise
from multiprocessing import forkserver, util

import torch

from mrv2lab import forks

_spawn, _execvp = util.spawnv_passfds, os.execvp


def install(words):
    """From now on, in this process and in its forks. `words` is the command that is to run here."""
    util.spawnv_passfds = _start
    os.execvp = _in_place
    if "sweep" in words:  # asks for its server when it has threads, which is too late for a fork
        forkserver.ensure_running()


def _start(path, words, passed):
    """As `util.spawnv_passfds`, by which `multiprocessing` starts its servers: the process's id."""
    *_, flag, program = words
    # Threads may hold a lock, of pydantic's for example, for which a fork would wait for ever. A command that
    # has looked at a GPU leaves none that its forks can use.
    others = threading.active_count() > 1 or torch.cuda.is_available()
    if others or flag != "-c" or "multiprocessing.forkserver" not in str(program):
        return _spawn(path, words, passed)
    if server := os.fork():
        return server
    try:
        _be_the_server(program, passed)
    finally:
        os._exit(0)


def _be_the_server(program, passed):
    gc.freeze()  # what was open has numbers that others get: none of it may be closed once more
    gc.set_threshold(100_000, 20, 100)
    sys.settrace(None)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one, next_one in pairwise([*sorted({2, *passed}), os.sysconf("SC_OPEN_MAX")]):
        os.closerange(one + 1, next_one)
    forks._starting = threading.Lock()  # held by whoever starts this one
    forkserver._forkserver.__init__()
    exec(program, {})


@functools.wraps(_execvp)  # it is sent by its name
def _in_place(file, words):
    if words[:3] != [sys.executable, "-P", "-m"] or "IN_PLACE" not in os.environ:
        _execvp(file, words)
    tempfile.tempdir = None  # of another environment
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = words[3:]
    runpy.run_module(words[3], run_name="__main__", alter_sys=True)
