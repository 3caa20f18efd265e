"""What tests share: the executors to run on, and the rule that GPU tests run where a GPU is."""

import itertools
import os

import pytest
import torch

import mrv2lab  # noqa: F401, before any test imports Triton

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


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Each executor in turn: one contract, two implementations."""
    return request.param


@pytest.fixture
def device(backend):
    return torch.device("cuda" if backend == "cuda" else "cpu")
