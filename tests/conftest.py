"""What tests share: the executors to run on, and the rule that GPU tests run where a GPU is."""

import pytest
import torch


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):  # not keywords: they hold names of parameters too
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Each executor in turn: one contract, two implementations."""
    return request.param


@pytest.fixture
def device(backend):
    return torch.device("cuda" if backend == "cuda" else "cpu")
