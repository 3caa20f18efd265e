"""Engines are run and audited once, however many tests look at them: `mystery.runs` keeps what it saw."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The tensors are tiny: threads that wait for each other would cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
