"""The story of vLLM #42304 and #44050: attention must stay out of the graph, so something must cut there."""

from dataclasses import replace

import pytest

from mrv2lab.cases import get
from mrv2lab.cases.breakable_graph import decode_graphs, make_runner
from mrv2lab.cases.serving import Served
from mrv2lab.cases.workload import serve, without_adapters
from mrv2lab.graphs import CaptureError
from mrv2lab.graphs.breakable import eager_break_during_capture
from mrv2lab.plots import capture_costs, latency
from mrv2lab.runner import CUDAGraphMode
from mrv2lab.runner.forward_context import get_forward_context, set_forward_context
from mrv2lab.runner.model_runner import break_at_attention

CASE = get("breakable_graph")
LAYERS = 2
SMALL = {"rung": "emulated", "num_layers": 1, "batch_size": 2, "num_steps": 9}
AT_ONE_SHAPE = replace(CASE, exercise=replace(CASE.exercise, harder=()))


@pytest.fixture
def runs(run_once):
    return lambda variant, rung: run_once(CASE.name, variant, rung)


def test_unrouted_asks_for_graphs_and_gets_none(backend):
    shape = CASE.complete({"num_layers": 1, "batch_size": 2})
    runner = make_runner(CASE.variant("unrouted"), backend, shape)
    runner.warm_up_and_capture()
    steps = serve(runner, [without_adapters(shape)[0][:2]], 2)
    assert CUDAGraphMode.PIECEWISE in {step.cg_mode for step in steps}
    assert {step.num_replays for step in steps} == {0}
    assert runner.cudagraph_manager.pool.num_bytes == 0


def test_whole_graph_is_one_segment_and_goes_wrong_with_the_first_replay(runs, backend):
    run = runs("whole_graph", backend)
    assert run.metrics["segments_per_step"] == 1
    assert run.step_modes[0] == "eager" and run.errors[0] < 1e-6  # the prompts fit no graph
    assert run.errors[run.step_modes.index("graph")] > 0.1
    assert run.message is None  # silently


@pytest.mark.parametrize("variant", ["piecewise", "breakable"])
def test_a_fixed_variant_has_a_graph_more_than_layers_and_attention_in_none(runs, variant, backend):
    run, whole = runs(variant, backend), runs("whole_graph", backend)
    assert run.metrics["segments_per_step"] == LAYERS + 1
    assert run.metrics["replayed_steps"] == whole.metrics["replayed_steps"] >= 8
    assert 0 < run.metrics["graph_nodes"] < whole.metrics["graph_nodes"]
    assert run.max_error < 1e-5


def test_cutting_and_breaking_capture_the_same_work(runs, backend):
    assert runs("piecewise", backend).kernels == runs("breakable", backend).kernels


def test_whole_graph_attends_to_the_length_of_the_dummy_batch(runs, quick):
    def frozen_at_one(model, manager):
        """What `whole_graph` froze, said aloud: a dummy request is one token long."""
        manager.use_breakable_cg = True
        for index in range(len(model.layers)):
            attn = model.layer(index).attn
            attn.op = eager_break_during_capture(with_max_seq_len(1, attn.op))
        return model

    frozen = CASE.check(frozen_at_one, rung="emulated", **quick(CASE.name, "emulated")).run
    seen = [i for i, mode in enumerate(frozen.step_modes) if mode == "graph"]
    whole = runs("whole_graph", "emulated")
    assert [frozen.errors[i] for i in seen] == pytest.approx([whole.errors[i] for i in seen], rel=1e-4)


def with_max_seq_len(max_seq_len, op):
    """Attention that looks no further than `max_seq_len`, whatever the batch says."""

    def limited(query, key, value, output, layer):
        with set_forward_context(replace(get_forward_context(), max_seq_len=max_seq_len)):
            op(query, key, value, output, layer)

    return limited


def worst_case(model, manager):
    """The other repair: freeze a length that is never too short. What FULL graphs do."""
    manager.use_breakable_cg = True
    for index in range(len(model.layers)):
        attn = model.layer(index).attn
        attn.op = with_max_seq_len(64, attn.op)
    return model


def test_one_segment_is_right_when_the_frozen_length_is_the_longest():
    run = CASE.check(worst_case, **SMALL).run
    assert (run.verdict, run.metrics["segments_per_step"]) == ("correct", 1)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_verdicts_hold_for_other_batch_sizes(batch_size):
    shape = SMALL | {"batch_size": batch_size}
    assert CASE.run("whole_graph", **shape).verdict == "wrong"
    assert CASE.run("piecewise", **shape).verdict == "correct"
    assert CASE.run("breakable", **shape).verdict == "correct"


def test_the_runner_breaks_as_breakable_does(runs, quick):
    run = AT_ONE_SHAPE.check(break_at_attention, rung="emulated", **quick(CASE.name, "emulated")).run
    assert run.kernels == runs("breakable", "emulated").kernels
    assert run.errors == runs("breakable", "emulated").errors


def test_decode_graphs_takes_a_replayed_step_with_a_full_batch():
    class Step:
        def __init__(self, num_reqs, num_replays):
            self.req_ids, self.num_replays = ["r"] * num_reqs, num_replays

    steps = [Step(2, 0), Step(1, 2), Step(2, 3), Step(2, 3)]
    assert decode_graphs(Served(None, None, {"batch_size": 2}, steps, list("abcdefgh"))) == ["c", "d", "e"]
    assert decode_graphs(Served(None, None, {"batch_size": 2}, steps[:2], ["a", "b"])) == []


@pytest.mark.gpu
def test_on_a_gpu_capture_is_timed_and_its_memory_known(runs):
    for variant in ("whole_graph", "piecewise", "breakable"):
        metrics = runs(variant, "cuda").metrics
        assert metrics["capture_ms"] > 0 and metrics["pool_bytes"] > 0
    assert runs("unrouted", "cuda").metrics["pool_bytes"] == 0
    assert "pool_bytes" not in runs("eager", "cuda").metrics


def test_the_emulator_claims_neither_time_nor_memory(runs):
    metrics = runs("breakable", "emulated").metrics
    assert set(metrics) == {"segments_per_step", "graph_nodes", "replayed_steps"}


def panels(plot):
    return [axes.get_xlabel() for axes in plot.figure.axes]


def test_costs_of_capture_are_drawn_where_they_are_known(runs):
    emulated = [runs(v.name, "emulated") for v in CASE.variants]
    assert panels(capture_costs(emulated)) == ["graphs in a\ndecode step"]
    measured = [
        run.model_copy(update={"metrics": run.metrics | {"capture_ms": 12.0, "pool_bytes": 2097152.0}})
        for run in emulated[1:]
    ]
    plot = capture_costs([emulated[0], *measured])
    assert panels(plot)[1:] == ["capture of all\nsizes, ms", "memory of the\ngraphs, MiB"]
    bars = plot.figure.axes[0]
    names = [label.get_text() for label in bars.get_yticklabels()]
    lengths = [patch.get_width() for patch in bars.patches]
    assert dict(zip(names, lengths, strict=True)) == {
        "eager": 0,
        "unrouted": 0,
        "whole_graph": 1,
        "downgraded": 0,
        "piecewise": LAYERS + 1,
        "breakable": LAYERS + 1,
        "full_graph": 1,
    }
    texts = [text.get_text() for axes in plot.figure.axes for text in axes.texts]
    assert "none" in texts and "12" in texts and texts.count("2") >= 2
    assert repr(plot) == repr(capture_costs(emulated))


def test_figures_without_runs_are_empty_and_say_nothing_on_standard_error(recwarn):
    assert len(capture_costs([]).figure.axes) == len(latency([]).figure.axes) == 1
    assert [str(warning.message) for warning in recwarn] == []


# ---- a reader's own function ----


def returns_its_output(model, manager):
    """Breaks at attention that returns a tensor instead of writing into one."""

    def op(query, key, value, output, layer):
        return layer.attend(query, key, value, get_forward_context())

    manager.use_breakable_cg = True
    model.layer(0).attn.op = eager_break_during_capture(op)
    return model


def returns_nothing(model, manager):
    """Forgets to return the model."""
    manager.use_breakable_cg = True


def wrong_shape(model, manager):
    """Returns hidden states of the wrong width."""
    return lambda input_ids, positions: model(input_ids, positions)[:, :3]


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        (returns_its_output, "BreakError: returns_its_output.<locals>.op returned a Tensor where the"),
        (returns_nothing, "TypeError: returns_nothing returned None; return what PIECEWISE"),
        (wrong_shape, "RuntimeError: The expanded size of the tensor"),
    ],
)
def test_a_slip_of_the_readers_is_a_verdict_with_a_sentence(mine, says):
    run = CASE.check(mine, **SMALL).run
    assert run.verdict == "failed"
    assert run.message.startswith(says)


def test_the_diff_of_the_two_variants_is_the_lesson():
    lines = CASE.diff("whole_graph", "breakable").lines
    added = [line for line in lines[3:] if line.startswith("+")]
    removed = [line for line in lines[3:] if line.startswith("-")]
    assert any("eager_break_during_capture(attn.op)" in line for line in added)
    assert not [line for line in removed if '"""' not in line and not line.startswith("-def ")]


def test_attention_that_no_graph_can_hold_says_so_and_the_mode_is_lowered_aloud(backend, caplog):
    shape = CASE.complete({})
    runner = make_runner(CASE.variant("downgraded"), backend, shape)
    assert runner.cudagraph_manager.capture_descs == []
    words = "FULL_DECODE_ONLY graphs: attention by DEVICE_LENGTHS supports NEVER; setting NONE"
    assert caplog.messages == [words]


def test_where_nobody_lowers_the_mode_of_that_attention_capture_stops(backend):
    """The level is no whim: what the op does cannot be captured."""
    runner = make_runner(CASE.variant("downgraded"), backend, CASE.complete({}))
    runner.cudagraph_manager.set_mode(CUDAGraphMode.FULL_DECODE_ONLY)
    with pytest.raises(CaptureError):
        runner.warm_up_and_capture()
