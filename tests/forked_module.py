"""Stands in for `python -P -m MODULE ...`, in a process that has imported this package."""

import gc
import os
import runpy
import sys

# Given by `conftest.ForkedModule`.
arguments, environment, files = (globals()[name] for name in ("arguments", "environment", "files"))

gc.freeze()
gc.set_threshold(100_000, 20, 100)
os.environ.clear()
os.environ.update(environment)
for number, file in enumerate(files, 1):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
runpy.run_path(os.path.join(os.path.dirname(__file__), "forked_server.py"))["install"](arguments)
sys.argv = arguments
runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
