"""Every variant is run once on each rung, however many tests look at the run."""

import functools

import pytest

from mrv2lab.cases import get


@pytest.fixture(scope="session")
def run_once():
    """`run_once(case, variant, rung)` at the case's default shape."""
    return functools.lru_cache(maxsize=None)(lambda case, variant, rung: get(case).run(variant, rung=rung))
