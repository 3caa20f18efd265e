"""The story of a grid that follows the number of adapters: one id, a key that forgets one, room for all."""

import pytest

from mrv2lab.cases import get
from mrv2lab.cases.lora_frozen_grid import keyed_full, keyed_short, make_runner
from mrv2lab.errors import BadInput
from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, Request, RunnerConfig

CASE = get("lora_frozen_grid")
SMALL = {"num_layers": 1, "batch_size": 2}


@pytest.fixture
def runs(run_once):
    return lambda variant, rung: run_once(CASE.name, variant, rung)


@pytest.mark.parametrize(
    ("variant", "grid_z"), [("one_slot", 1), ("keyed_short", 2), ("keyed_last", 2), ("keyed_full", 3)]
)
def test_the_grid_has_room_for_so_many_of_three_ids(runs, backend, variant, grid_z):
    run = runs(variant, backend)
    assert (run.metrics["grid_z"], run.metrics["ids_in_batch"]) == (grid_z, 3)
    assert (run.verdict == "correct") == (grid_z == 3)


def test_only_replays_are_wrong_and_nothing_is_said(runs, backend):
    run = runs("keyed_short", backend)
    assert run.errors[run.step_modes.index("eager")] < 1e-6 and run.message is None
    assert run.errors[run.step_modes.index("graph")] > 0.1


def served(select_dummy_loras, lora_ids, **config):
    """Logits after one replayed step of a request for each adapter, and its runner."""
    sizes = (8 if len(lora_ids) > 2 else 4,)
    config = {"max_loras": 2, "specialize_active_lora": True, "cudagraph_capture_sizes": sizes, **config}
    config = RunnerConfig(num_layers=1, **config)
    runner = ModelRunner(config, "emulated", select_dummy_loras=select_dummy_loras)
    runner.warm_up_and_capture()
    engine = Engine(runner)
    for i, lora_id in enumerate(lora_ids):
        engine.add_request(Request(f"r{i}", (1, 2), 2, lora_id))
    output = engine.step()
    assert output.num_replays == (config.cudagraph_mode is not CUDAGraphMode.NONE)
    return output.logits


@pytest.fixture(scope="module")
def eager():
    return served(None, [1, 2, 0], cudagraph_mode=CUDAGraphMode.NONE)


def test_the_last_adapter_is_dropped_and_the_others_are_right(eager):
    wrong = served(keyed_short, [1, 2, 0])
    close = [(wrong[i] - eager[i]).abs().max() < 1e-4 for i in range(3)]
    assert close == [True, False, True]  # in order of requests: adapter 1, adapter 2, none
    base = served(None, [0, 0, 0], cudagraph_mode=CUDAGraphMode.NONE)
    logits_adapter = (wrong[1] - base[1]).norm() / base[1].norm()
    assert (
        logits_adapter < (eager[1] - base[1]).norm() / base[1].norm()
    )  # what is left is the adapter on the head


@pytest.mark.parametrize(
    "lora_ids", [[1, 2], *(pytest.param(ids, marks=pytest.mark.slow) for ids in ([2, 2], [0, 0]))]
)
def test_without_a_base_request_keys_are_right(lora_ids):
    wanted = served(None, lora_ids, cudagraph_mode=CUDAGraphMode.NONE)
    assert (served(keyed_short, lora_ids) - wanted).abs().max() < 1e-4


def test_a_batch_with_a_base_request_never_gets_to_the_last_key():
    sizes = {"cudagraph_capture_sizes": (4,)}
    runner = make_runner(CASE.variant("keyed_last"), "emulated", CASE.complete({}), **sizes)
    runner.warm_up_and_capture()
    manager = runner.cudagraph_manager
    assert manager.lora_capture_cases == [0, 1, 2, 3]
    assert manager.dispatch(3, 3, 1, num_active_loras=2).num_active_loras == 2
    rooms = {d.num_active_loras: max(n.grid[2] for n in g.nodes if "_lora_" in n.name)
             for d, g in manager.graphs.items() if d.num_tokens == 4 and d.num_active_loras}  # fmt: skip
    assert rooms == {1: 1, 2: 2, 3: 3}


def test_piecewise_graphs_are_not_keyed():
    config = RunnerConfig(cudagraph_mode=CUDAGraphMode.PIECEWISE)
    with pytest.raises(BadInput, match="PIECEWISE graphs keyed by adapters"):
        ModelRunner(config, "emulated", select_dummy_loras=keyed_full)


def test_the_audit_tells_the_number_and_the_grid(audit_once):
    report = audit_once(CASE.name, "keyed_short", "emulated")
    assert {"frozen-host-value", "frozen-grid"} <= set(report.kinds)
    (grid, *_) = [finding for finding in report.findings if finding.kind == "frozen-grid"]
    assert grid.subject.startswith("_lora_") and "2)" in grid.evidence and "3)" in grid.evidence
