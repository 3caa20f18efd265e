"""The story of vLLM #43314: the buggy variant loses the adapters silently, the fixed one does not."""

import pytest

from mrv2lab.cases import get
from mrv2lab.cases.lora_short_circuit import forced_launch, zero_mapping
from mrv2lab.cases.workload import workload
from mrv2lab.runner import Engine, ModelRunner, Request, RunnerConfig

CASE = get("lora_short_circuit")
PROJECTIONS = 4


@pytest.fixture
def runs(run_once):
    return lambda variant, rung: run_once(CASE.name, variant, rung)


def test_zero_mapping_loses_the_kernels_and_only_replays_go_wrong_first(runs, backend):
    run = runs("zero_mapping", backend)
    assert not [name for name in run.kernels if name.startswith("_lora_")]
    assert run.step_modes[0] == "eager" and run.errors[0] < 1e-6  # the prefill fits no graph, so it is right
    first_replay = run.step_modes.index("graph")
    assert run.errors[first_replay] > 0.1
    assert run.max_error > 0.2
    assert run.message is None  # silently


def test_forced_launch_holds_a_shrink_and_an_expand_for_every_layer_and_projection(runs, backend):
    run = runs("forced_launch", backend)
    each = run.shape["num_layers"] * PROJECTIONS
    assert run.kernels["_lora_shrink_kernel"] == run.kernels["_lora_expand_kernel"] == each
    assert run.max_error < 1e-5


def test_every_layer_has_its_own():
    runner = ModelRunner(RunnerConfig(num_layers=3, cudagraph_capture_sizes=(1,)), "emulated", forced_launch)
    runner.warm_up_and_capture()
    (graph,) = runner.cudagraph_manager.graphs.values()
    assert graph.kernels()["_lora_shrink_kernel"] == graph.kernels()["_lora_expand_kernel"] == 3 * PROJECTIONS


@pytest.mark.gpu
def test_replay_is_at_least_three_times_faster_than_eager_at_batch_8():
    eager, fixed = (CASE.run(v, rung="cuda", batch_size=8) for v in ("eager", "forced_launch"))
    assert eager.latency_ms.median >= 3 * fixed.latency_ms.median


def test_a_wrong_answer_has_no_speed_and_the_emulator_has_none_at_all(runs, backend):
    assert runs("zero_mapping", backend).latency_ms is None
    if backend == "emulated":
        assert runs("forced_launch", backend).latency_ms is None


def test_adapters_and_batches_change_while_the_workload_runs():
    wanted = workload(CASE.complete({}))
    assert {request.lora_id for request in wanted} == {0, 1, 2, 3}
    assert len({request.max_tokens for request in wanted}) > 2


@pytest.mark.parametrize(
    "batch_size", [1, pytest.param(3, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_verdicts_hold_for_other_batch_sizes(batch_size, request):
    if batch_size == 1:
        request.getfixturevalue("few_sizes")
    shape = {"batch_size": batch_size, "num_layers": 1, "num_steps": 9}
    assert CASE.run("zero_mapping", rung="emulated", **shape).verdict == "wrong"
    assert CASE.run("forced_launch", rung="emulated", **shape).verdict == "correct"


def answer(dummy_lora, lora_ids, **config):
    """Logits after one replayed step of a request for each adapter."""
    config = RunnerConfig(num_layers=1, cudagraph_capture_sizes=(4,), **config)
    runner = ModelRunner(config, "emulated", dummy_lora)
    runner.warm_up_and_capture()
    engine = Engine(runner)
    for i, lora_id in enumerate(lora_ids):
        engine.add_request(Request(f"r{i}", (1, 2), 2, lora_id))
    output = engine.step()
    assert output.num_replays == 1
    return output.logits


def test_without_adapters_zero_mapping_is_right_so_a_test_of_the_base_model_passes():
    assert answer(zero_mapping, [0, 0]).equal(answer(forced_launch, [0, 0]))
    assert not answer(zero_mapping, [0, 1]).equal(answer(forced_launch, [0, 1]))


def flag_only(adapter_manager, input_batch):
    """A repair one might try: clear the flag and leave the count at 0."""
    zero_mapping(adapter_manager, input_batch)
    for punica_wrapper in adapter_manager.punica_wrapper_mapping.values():
        punica_wrapper.token_mapping_meta.no_lora_flag_cpu[0] = False
        punica_wrapper.prompt_mapping_meta.no_lora_flag_cpu[0] = False


def test_the_count_matters_as_soon_as_the_grid_follows_it():
    right = answer(forced_launch, [1, 1])
    assert answer(flag_only, [1, 1]).equal(right)
    special = {"specialize_active_lora": True}
    assert not answer(flag_only, [1, 1], **special).equal(right)  # a grid of 0 adapters launches nothing
    assert answer(forced_launch, [1, 1], **special).equal(right)


def test_a_specialised_grid_is_frozen_at_one_adapter():
    # Why vLLM later keyed its graphs by the number of active adapters (#35536).
    right = answer(forced_launch, [1, 2])
    frozen = answer(forced_launch, [1, 2], specialize_active_lora=True)
    assert frozen[0].equal(right[0])
    assert not frozen[1].equal(right[1])


def test_check_judges_a_function_of_the_readers_own(few_sizes):
    small = {"rung": "emulated", "num_layers": 1, "batch_size": 2, "num_steps": 9}
    mine = CASE.check(flag_only, **small)
    assert (mine.run.variant, mine.run.role, mine.run.verdict) == ("flag_only", None, "wrong")
    assert mine.harder["specialize_active_lora"] == 1  # at its own shape the case cannot tell


def broken(adapter_manager, input_batch):
    """A repair with a slip in it."""
    adapter_manager.no_such_method()


def test_a_function_that_raises_has_failed_and_has_its_message():
    run = CASE.check(broken, rung="emulated").run
    assert run.verdict == "failed"
    assert run.message == "AttributeError: 'LoRAModelManager' object has no attribute 'no_such_method'"


def test_the_diff_of_the_two_variants_is_the_lesson():
    lines = CASE.diff("zero_mapping", "forced_launch").lines
    added = [line for line in lines if line.startswith("+")]
    removed = [line for line in lines[3:] if line.startswith("-")]
    assert any("no_lora_flag_cpu[0] = False" in line for line in added)
    assert not [line for line in removed if '"""' not in line and not line.startswith("-def ")]
