"""Every variant is run once on each rung, however many tests look at the run. Stages are forked."""

import os
import pickle
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path

import pytest

from mrv2lab.cases import get
from mrv2lab.runner import RunnerConfig

# As few requests, layers and steps as show the same: those are what kernels cost in Triton's interpreter.
# Notebooks and `make slow` run each case as it is by default.
QUICK = {
    "lora_device_assert": {"batch_size": 2, "num_steps": 10},
    "lora_short_circuit": {"batch_size": 2, "num_layers": 1, "num_steps": 10},
    "lora_frozen_grid": {"batch_size": 3},  # with two adapters and none
    "flashmla_lazy_init": {"batch_size": 2},
    "stale_view": {"batch_size": 2, "num_steps": 10},
    "breakable_graph": {"batch_size": 2, "num_steps": 10},
    "pp_eager_fallback": {"batch_size": 2, "num_steps": 10},
}


counted = run_path(str(Path(__file__).with_name("costs.py")))["counted"]


@pytest.fixture(scope="session")
def run_once(run_and_costs):
    """`run_once(case, variant, rung)`, emulated at `QUICK`."""
    return lambda *which: run_and_costs(*which)[0]


@pytest.fixture(scope="session")
def run_and_costs(tmp_path_factory, quick):
    """The same run, and what `costs.counted` counts of it; kept on disk for the other processes."""
    folder = shared(tmp_path_factory)

    def run(case, variant, rung):
        def make():
            with counted() if rung == "emulated" else nullcontext({}) as costs:
                ended = get(case).run(variant, rung=rung, **quick(case, rung))
            return ended, costs

        return kept(folder / f"run of {case} {variant} {rung}", make)

    return run


@pytest.fixture(scope="session")
def audit_once(tmp_path_factory, quick):
    """`audit_once(case, variant, rung)`, emulated at `QUICK`; kept as runs are."""
    folder = shared(tmp_path_factory)

    def audit(case, variant, rung):
        is_left_alone = case == "flashmla_lazy_init"  # for fewer than four requests its stale plan is right
        shape = {} if is_left_alone else quick(case, rung)
        return kept(
            folder / f"audit of {case} {variant} {rung}",
            lambda: get(case).audit(variant, rung=rung, seed=3, **shape),
        )

    return audit


def shared(tmp_path_factory):
    """A folder that all processes of a session have."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def kept(file, make):
    """What the file holds, or is given now."""
    if not file.exists():
        made = file.with_name(f"{file.name} {os.getpid()}")
        made.write_bytes(pickle.dumps(make()))
        made.replace(file)
    return pickle.loads(file.read_bytes())


@pytest.fixture
def few_sizes(monkeypatch):
    """Graphs of one token and of two and no others, for what serves no more requests at once."""
    made = RunnerConfig.__init__
    sizes = [
        (1, 2) if value == RunnerConfig.cudagraph_capture_sizes else value for value in made.__defaults__
    ]
    monkeypatch.setattr(made, "__defaults__", tuple(sizes))


@pytest.fixture(scope="session")
def quick():
    """`quick(case, rung)`: the shape of `run_once`."""
    return lambda case, rung: QUICK.get(case, {}) if rung == "emulated" else {}
