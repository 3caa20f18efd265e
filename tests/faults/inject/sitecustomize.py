"""Lets something go wrong at a function of this package, in whichever process first comes to it.

Python imports this when it starts, where this folder is on its path. MRV2LAB_FAULT holds, as JSON: `module`,
`function` (`Class.method`), `what` (a name of `FAULTS`), and `file`, which is made when it happens: it
happens once.
"""

import functools
import importlib.abc
import json
import os
import signal
import sys
import time


def _grow():
    held = []
    while True:
        held.append(b"x" * (16 << 20))
        time.sleep(0.01)  # it shall be seen before it has all there is


def _flood():
    while True:
        os.write(1, b"not again\n" * 100_000)


def _fail():
    raise MemoryError


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupt": lambda: os.killpg(0, signal.SIGINT),  # as a terminal does
    "exit": lambda: os._exit(0),
    "grow": _grow,
    "flood": _flood,
    "memory": _fail,
}


def faulty(function, fault):
    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            os.close(os.open(fault["file"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            FAULTS[fault["what"]]()
        return function(*args, **kwargs)

    return call


def put_in(module, fault):
    owner = module
    *path, name = fault["function"].split(".")
    for step in path:
        owner = getattr(owner, step)
    setattr(owner, name, faulty(getattr(owner, name), fault))


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault):
        self.fault = fault

    def find_spec(self, name, path, target=None):
        if name != self.fault["module"]:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            put_in(module, self.fault)

        spec.loader.exec_module = exec_module
        return spec


def install():
    if "MRV2LAB_FAULT" in os.environ:
        fault = json.loads(os.environ["MRV2LAB_FAULT"])
        if fault["module"] in sys.modules:
            put_in(sys.modules[fault["module"]], fault)
        else:
            sys.meta_path.insert(0, Finder(fault))


if __name__ == "sitecustomize":
    install()
