"""Every variant is run once on each rung, however many tests look at the run. Stages are forked."""

import os
import pickle
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path

import pytest

from mrv2lab.cases import get

# As few requests and layers as show the same: those are what kernels cost in Triton's interpreter. Notebooks
# and `make slow` run each case as it is by default.
QUICK = {
    "lora_device_assert": {"batch_size": 2, "num_steps": 10},
    "lora_short_circuit": {"batch_size": 2, "num_layers": 1},
    "lora_frozen_grid": {"batch_size": 3},  # with two adapters and none
    "flashmla_lazy_init": {"batch_size": 2},
    "stale_view": {"batch_size": 2},
    "pp_eager_fallback": {"batch_size": 2},
}


counted = run_path(str(Path(__file__).with_name("costs.py")))["counted"]


@pytest.fixture(scope="session")
def run_once(run_and_costs):
    """`run_once(case, variant, rung)`, emulated at `QUICK`."""
    return lambda *which: run_and_costs(*which)[0]


@pytest.fixture(scope="session")
def run_and_costs(tmp_path_factory, quick):
    """The same run, and what `costs.counted` counts of it; kept on disk for the other processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def run(case, variant, rung):
        kept = folder / f"run of {case} {variant} {rung}"
        if not kept.exists():
            made = kept.with_name(f"{kept.name} {os.getpid()}")
            with counted() if rung == "emulated" else nullcontext({}) as costs:
                ended = get(case).run(variant, rung=rung, **quick(case, rung))
            made.write_bytes(pickle.dumps((ended, costs)))
            made.replace(kept)
        return pickle.loads(kept.read_bytes())

    return run


@pytest.fixture(scope="session")
def quick():
    """`quick(case, rung)`: the shape of `run_once`."""
    return lambda case, rung: QUICK.get(case, {}) if rung == "emulated" else {}
