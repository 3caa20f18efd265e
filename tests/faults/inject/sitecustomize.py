"""Lets something go wrong at a function of this package, in whichever process first comes to it.

Python imports this when it starts, where this folder is on its path. MRV2LAB_FAULT holds, as JSON: `module`,
`function` (`Class.method`), `what` (a name of `FAULTS`), and `file`, which is made when it happens: it
happens once. With `after` it happens while the function runs, once that file is there.

MRV2LAB_SETTINGS holds, by module, what names in it are to mean. MRV2LAB_MACHINE holds what a machine has that
this one has not: `gpu`, with `name` and `capability`, and `path`, folders of packages.
"""

import functools
import importlib.abc
import json
import os
import signal
import sys
import threading
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


def _refuse():
    raise ValueError(os.environ["MRV2LAB_REFUSAL"])


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "interrupt": lambda: os.killpg(0, signal.SIGINT),  # as a terminal does
    "exit": lambda: os._exit(0),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),  # until it is told to go on
    "grow": _grow,
    "flood": _flood,
    "memory": _fail,
    "refuse": _refuse,
}


def happen(fault):
    try:
        os.close(os.open(fault["file"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    FAULTS[fault["what"]]()


def happen_later(fault):
    while not os.path.exists(fault["after"]):
        time.sleep(0.01)
    happen(fault)


def faulty(function, fault):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if "after" in fault:
            threading.Thread(target=happen_later, args=(fault,), daemon=True).start()
        else:
            happen(fault)
        return function(*args, **kwargs)

    return call


def put_in(module, fault):
    owner = module
    *path, name = fault["function"].split(".")
    for step in path:
        owner = getattr(owner, step)
    setattr(owner, name, faulty(getattr(owner, name), fault))


def report(torch, gpu):
    """A GPU, as torch tells of it. Nothing runs there."""
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda device=None: gpu["name"]
    torch.cuda.get_device_capability = lambda device=None: tuple(gpu["capability"])


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name, change):
        self.name, self.change = name, change

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.change(module)

        spec.loader.exec_module = exec_module
        return spec


def once_imported(name, change):
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, Finder(name, change))


def install():
    machine = json.loads(os.environ.get("MRV2LAB_MACHINE", "{}"))
    sys.path.extend(machine.get("path", []))
    if "gpu" in machine:
        once_imported("torch", functools.partial(report, gpu=machine["gpu"]))
    for module, values in json.loads(os.environ.get("MRV2LAB_SETTINGS", "{}")).items():
        once_imported(module, lambda module, values=values: vars(module).update(values))
    if "MRV2LAB_FAULT" in os.environ:
        fault = json.loads(os.environ["MRV2LAB_FAULT"])
        once_imported(fault["module"], functools.partial(put_in, fault=fault))


if __name__ == "sitecustomize":
    install()
