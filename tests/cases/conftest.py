"""Every variant is run once on each rung, however many tests look at the run. Stages are forked."""

import multiprocessing
import os
import pickle
from pathlib import Path
from runpy import run_path

import pytest

from mrv2lab.cases import get
from mrv2lab.runner import pp_executor

_STAGE = Path(__file__).with_name("forked_stage.py")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["mrv2lab.cases", "mrv2lab.runner.pp_worker"])


@pytest.fixture(scope="session")
def run_once(tmp_path_factory):
    """`run_once(case, variant, rung)` at the case's default shape; kept on disk for the other processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def run(case, variant, rung):
        kept = folder / f"run of {case} {variant} {rung}"
        if not kept.exists():
            made = kept.with_name(f"{kept.name} {os.getpid()}")
            made.write_bytes(pickle.dumps(get(case).run(variant, rung=rung)))
            made.replace(kept)
        return pickle.loads(kept.read_bytes())

    return run


class ForkedStage:
    """As much of `subprocess.Popen` as `pp_executor` asks for, of a stage that has imported all it needs."""

    def __init__(self, folder, rank):
        far, self.stdin = _FORKS.Pipe(duplex=False)
        given = {"folder": folder, "rank": rank, "environment": dict(os.environ), "lifeline": far}
        self._process = _FORKS.Process(target=run_path, args=(str(_STAGE), given), daemon=True)
        self._process.start()
        far.close()

    def poll(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def wait(self):
        self._process.join()


@pytest.fixture(autouse=True)
def forked_stages(monkeypatch):
    """Importing takes a stage longer than its work. `test_gate` and `tests/runner` start them as users do."""
    monkeypatch.setattr(pp_executor, "_start", ForkedStage)
