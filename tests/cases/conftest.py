"""Every variant is run once on each rung, however many tests look at the run. Stages are forked."""

import os
import pickle

import pytest

from mrv2lab.cases import get


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


@pytest.fixture(autouse=True)
def quick_stages(forked_stages):
    """In every test of this folder."""
