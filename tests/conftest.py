"""What tests share: the executors to run on, and the rule that GPU tests run where a GPU is."""

import itertools
import multiprocessing
import os
from pathlib import Path
from runpy import run_path

import pytest
import torch

import mrv2lab  # noqa: F401, before any test imports Triton
from mrv2lab.runner import pp_executor

_STAGE = Path(__file__).with_name("forked_stage.py")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["mrv2lab.cases", "mrv2lab.runner.pp_worker"])

# Needs a release of vLLM, and a process in which much of it is replaced. Asked for, it runs or fails.
collect_ignore = [] if os.environ.get("MRV2LAB_VLLM") else ["conformance"]


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):  # not keywords: they hold names of parameters too
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(autouse=True)
def same_random_numbers_in_every_run():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def readers(tmp_path_factory):
    """A folder for progress, and numbers for those who make it: to make a folder for each costs more."""
    return tmp_path_factory.mktemp("readers"), itertools.count()


@pytest.fixture(autouse=True)
def progress_of_its_own(readers, monkeypatch):
    folder, numbers = readers
    monkeypatch.setenv("MRV2LAB_PROGRESS", str(folder / f"{next(numbers)}" / "progress.json"))


@pytest.fixture
def displayed(monkeypatch):
    """What is displayed, as pairs of data and metadata."""
    shown = []
    for module in ("IPython.display", "mrv2lab.widgets"):
        monkeypatch.setattr(
            f"{module}.display", lambda data, raw, metadata=None: shown.append((data, metadata))
        )
    return shown


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Each executor in turn: one contract, two implementations."""
    return request.param


@pytest.fixture
def device(backend):
    return torch.device("cuda" if backend == "cuda" else "cpu")


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


@pytest.fixture
def forked_stages(monkeypatch):
    """Importing takes longer than a stage's work. `test_pipeline` and notebooks start them as users do."""
    monkeypatch.setattr(pp_executor, "_start", ForkedStage)
