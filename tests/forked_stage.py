"""A stage of a pipeline as a fork of a process that has imported it: that takes longer than its work."""

import gc
import multiprocessing
import os
import sys
from runpy import run_path

from mrv2lab.runner import pp_worker

_FORKS = multiprocessing.get_context("forkserver")


class ForkedStage:
    """As much of `subprocess.Popen` as `pp_executor` asks for, of `python -m mrv2lab.runner.pp_worker`."""

    def __init__(self, folder, rank):
        far, self.stdin = _FORKS.Pipe(duplex=False)
        given = {"folder": folder, "rank": rank, "environment": dict(os.environ), "lifeline": far}
        self._process = _FORKS.Process(target=run_path, args=(__file__, given, "__main__"), daemon=True)
        self._process.start()
        far.close()

    def poll(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def wait(self):
        self._process.join()


def be_the_stage(folder, rank, environment, lifeline):
    gc.freeze()  # each capture collects garbage: not among all that was imported
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(lifeline.fileno(), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    pp_worker.main(folder, rank)


if __name__ == "__main__":
    be_the_stage(*(globals()[name] for name in ("folder", "rank", "environment", "lifeline")))
