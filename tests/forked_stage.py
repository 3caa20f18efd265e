"""Stands in for `python -m mrv2lab.runner.pp_worker FOLDER RANK`, in a process that has imported it."""

import gc
import os
import sys

from mrv2lab.runner import pp_worker

# Given by `conftest.ForkedStage`.
folder, rank, environment, lifeline = (
    globals()[name] for name in ("folder", "rank", "environment", "lifeline")
)

gc.freeze()  # each capture collects garbage: not among all that was imported
os.environ.clear()
os.environ.update(environment)
log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
os.dup2(log, 1)
os.dup2(log, 2)
os.dup2(lifeline.fileno(), 0)
sys.stdin = open(0, closefd=False)  # noqa: SIM115
pp_worker.main(folder, rank)
