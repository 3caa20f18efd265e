"""The story of vLLM #43139: a look-up at indices nobody wrote, and an error at the wrong line."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from torch.utils import deterministic

from mrv2lab.cases import get, isolated, lora_short_circuit
from mrv2lab.cases.base import Variant
from mrv2lab.cases.lora_device_assert import (
    child_env,
    filled_memory,
    make_runner,
    observe,
    unwritten,
    zero_mapping,
)
from mrv2lab.errors import BadInput, IllegalAccess
from mrv2lab.runner import CUDAGraphMode, ModelRunner, RunnerConfig
from mrv2lab.runner.vocab_parallel_embedding import VocabParallelEmbeddingWithLoRA
from mrv2lab.source import diff

CASE = get("lora_device_assert")
LARGEST = torch.iinfo(torch.int64).max
SMALL = {"batch_size": 1, "rank": 4}


@pytest.fixture(scope="module")
def runs():
    """Each variant on each rung, run once; on CUDA in a process of its own."""
    kept = {}

    def run(variant, rung, **shape):
        key = (variant, rung, *shape.items())
        if key not in kept:
            kept[key] = CASE.run(variant, rung=rung, **SMALL | shape)
        return kept[key]

    return run


def line_of_the_look_up():
    """`file:line in function` of the statement that reads the adapters' rows."""
    lines, first = inspect.getsourcelines(VocabParallelEmbeddingWithLoRA.forward)
    (at,) = (i for i, line in enumerate(lines) if "F.embedding(" in line)
    return f"runner/vocab_parallel_embedding.py:{first + at} in forward"


# ---- the verdicts ----


@pytest.mark.parametrize("variant", [v.name for v in CASE.variants])
def test_every_variant_shows_its_stated_verdict(runs, variant, backend):
    run = runs(variant, backend)
    assert run.verdict == CASE.variant(variant).expected
    assert run.rung == backend
    assert len(run.errors) >= 9 or run.verdict == "crash"
    assert set(run.step_modes) <= {"eager"} and not run.kernels  # not a graph bug


def test_the_emulator_fails_at_the_look_up_itself(runs):
    run = runs("unwritten", "emulated")
    assert run.message == "IndexError: index out of range in self"
    assert run.where == line_of_the_look_up()
    assert (run.errors, run.latency_ms) == ([], None)


@pytest.mark.gpu
def test_a_gpu_reports_the_look_up_at_a_later_launch(runs):
    run = runs("unwritten", "cuda")
    assert "device-side assert triggered" in run.message
    assert run.where.startswith("kernels/lora_expand.py:")


@pytest.mark.gpu
def test_launch_blocking_moves_the_report_to_the_line_that_failed(runs):
    run = runs("unwritten", "cuda", launch_blocking=1)
    assert "device-side assert triggered" in run.message
    assert run.where == line_of_the_look_up()


@pytest.mark.gpu
def test_the_parent_keeps_its_context(runs):
    assert runs("unwritten", "cuda").verdict == "crash"
    assert torch.ones(2, device="cuda").sum().item() == 2


def test_a_process_of_its_own_hands_back_what_was_said_and_where():
    shape = CASE.complete({"launch_blocking": 1})
    run = isolated.run(CASE.name, "unwritten", "emulated", shape, child_env(shape))
    assert (run.verdict, run.where) == ("crash", line_of_the_look_up())


def test_on_a_gpu_every_variant_runs_in_such_a_process(monkeypatch):
    asked = []
    monkeypatch.setattr("mrv2lab.cases.base.best_rung", lambda rung: "cuda")
    monkeypatch.setattr("mrv2lab.cases.base.provenance", lambda seed, **kwargs: None)
    child = SimpleNamespace(model_copy=lambda update: "a run")
    monkeypatch.setattr(isolated, "run", lambda *args: asked.append(args) or child)
    assert CASE.run("zero_mapping", launch_blocking=1) == "a run"
    ((_, variant, rung, shape, env),) = asked
    assert (variant, rung, shape["launch_blocking"]) == ("zero_mapping", "cuda", 1)
    assert env == {"CUDA_LAUNCH_BLOCKING": "1"}
    assert child_env(CASE.complete({})) == {"CUDA_LAUNCH_BLOCKING": "0"}


# ---- the mechanism ----


def indices_of(runner):
    return runner.lora_manager.punica_wrapper_mapping["language_model"]._embeddings_indices


def test_a_filled_index_lies_outside_the_table_for_every_token(device, backend):
    runner = make_runner(CASE.variant("unwritten"), backend, CASE.complete({}))
    indices, config = indices_of(runner), runner.config
    assert indices.device.type == device.type
    assert indices.unique().tolist() == [LARGEST]
    rows = config.max_loras * config.vocab_size
    looked_up = torch.arange(config.vocab_size, dtype=torch.int32, device=device) + indices[:1]
    assert not ((looked_up >= 0) & (looked_up < rows)).any()  # past the end, or wrapped round to below zero


def test_memory_is_filled_while_the_runner_is_made_and_not_after():
    before = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    with filled_memory():
        assert torch.empty(2, dtype=torch.int32).tolist() == [2**31 - 1] * 2
        assert torch.empty(1).isnan().all()
    assert before == (torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory)


def test_settings_come_back_as_they_were_even_after_an_error(monkeypatch):
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.raises(KeyError), filled_memory():
            assert torch.empty(2, dtype=torch.int64).tolist() == [LARGEST] * 2
            raise KeyError
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert not deterministic.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["fill_memory", "launch_blocking"])
def test_what_is_done_or_not_done_is_not_done_twice(name):
    assert [CASE.complete({name: value})[name] for value in (0, 1)] == [0, 1]
    with pytest.raises(BadInput, match=f"{name}=2 is out of range; possible: 0 to 1"):
        CASE.complete({name: 2})


def test_not_filled_means_not_touched(monkeypatch):
    monkeypatch.setattr("mrv2lab.cases.lora_device_assert.filled_memory", None)  # calling it would raise
    assert make_runner(CASE.variant("unwritten"), "emulated", CASE.complete({"fill_memory": 0}))


def warm_up(backend, dummy_lora, fill=LARGEST, **config):
    """Run one dummy batch over indices that hold `fill`."""
    with filled_memory():
        runner = ModelRunner(RunnerConfig(num_layers=1, **config), backend, dummy_lora)
    indices_of(runner).fill_(fill)
    runner.dummy_run(16)
    return runner


def test_triton_is_only_the_messenger_without_the_look_up_nothing_fails(backend):
    # The kernels read metadata that nobody wrote either. Their token counts were zeroed, so they leave.
    warm_up(backend, unwritten, lora_embedding=False)


def test_the_crash_depends_on_what_the_memory_holds():
    warm_up("emulated", unwritten, fill=0, lora_embedding=True)
    last = RunnerConfig().max_loras * RunnerConfig().vocab_size - 1
    warm_up(
        "emulated", unwritten, fill=last, lora_embedding=True
    )  # in range, and nothing to do with the batch
    with pytest.raises(IndexError):
        warm_up("emulated", unwritten, fill=last + 1, lora_embedding=True)


def test_the_fix_writes_an_index_for_every_row_of_the_batch(backend):
    runner = warm_up(backend, zero_mapping, lora_embedding=True)
    assert indices_of(runner)[:16].unique().tolist() == [0]
    assert indices_of(runner)[16:].unique().tolist() == [LARGEST]


# ---- the fix, and what it hides ----


def test_the_diff_of_bug_and_fix_adds_the_mapping_and_takes_nothing():
    lines = CASE.diff("unwritten", "zero_mapping").lines
    assert any(line.startswith("+    adapter_manager.set_adapter_mapping(") for line in lines)
    removed = [line for line in lines[3:] if line.startswith("-")]
    assert all('"""' in line or line.startswith("-def ") for line in removed)


def test_this_fix_is_the_bug_of_the_next_case():
    assert diff(zero_mapping, lora_short_circuit.zero_mapping).lines == ()
    assert get("lora_short_circuit").variant("zero_mapping").role == "buggy"


def test_with_graphs_the_fix_leaves_the_kernels_out():
    def expands(dummy_lora):
        graphs = {"cudagraph_mode": CUDAGraphMode.FULL, "cudagraph_capture_sizes": (1,)}
        variant = Variant(dummy_lora, "fixed", "correct")
        runner = make_runner(variant, "emulated", CASE.complete({"fill_memory": 0}), **graphs)
        runner.warm_up_and_capture()
        (graph,) = runner.cudagraph_manager.graphs.values()
        return graph.kernels()["_lora_expand_kernel"]

    assert expands(zero_mapping) == 0
    assert expands(zeroed) == 5  # it leaves the host's flag down
    with pytest.raises(IllegalAccess):  # its mapping is left to a capture of fewer tokens
        expands(CASE.variant("dummy_adapters").fn)


# ---- a reader's own function ----


def only_requests(adapter_manager, input_batch):
    """A repair with a slip in it: as many entries as requests, where the batch has more tokens."""
    nobody = (0,) * input_batch.num_reqs
    adapter_manager.set_adapter_mapping(lora_short_circuit.LoRAMapping(nobody, nobody))


def zeroed(adapter_manager, input_batch):
    """Another repair: the memory itself."""
    for punica_wrapper in adapter_manager.punica_wrapper_mapping.values():
        punica_wrapper._embeddings_indices.zero_()


def test_check_judges_a_function_of_the_readers_own():
    slip = CASE.check(only_requests, **SMALL).run
    assert (slip.role, slip.verdict, slip.where) == (None, "crash", line_of_the_look_up())
    assert CASE.check(zeroed, **SMALL).run.as_expected


def too_long(adapter_manager, input_batch):
    """More entries than the buffers have room for."""
    adapter_manager.set_adapter_mapping(lora_short_circuit.LoRAMapping((0,) * 1000, (0,)))


def test_a_function_that_raises_has_failed_and_has_its_place():
    run = CASE.check(too_long, **SMALL).run
    assert run.verdict == "failed" and run.message.startswith("RuntimeError: ")
    assert run.where.startswith("runner/punica_wrapper.py:")


def test_the_speed_of_waiting_launches_is_not_asked_for(monkeypatch):
    monkeypatch.setattr("mrv2lab.cases.lora_device_assert.decode_latency", lambda *args: "a speed")
    for launch_blocking, speed in ((0, "a speed"), (1, None)):
        shape = CASE.complete({"batch_size": 1, "launch_blocking": launch_blocking})
        assert observe(CASE.variant("zero_mapping"), "emulated", shape).measure() == speed


@pytest.mark.gpu
def test_a_speed_is_measured_unless_every_launch_waits(runs):
    assert runs("zero_mapping", "cuda").latency_ms.median > 0
    assert runs("zero_mapping", "cuda", launch_blocking=1).latency_ms is None
