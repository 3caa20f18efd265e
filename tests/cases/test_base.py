"""How runs are judged, and what is refused."""

import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.fx.experimental.symbolic_shapes  # by the first matmul: cut off there, it would be half imported

from mrv2lab.cases import CASES, get, isolated
from mrv2lab.cases.base import Observation, judge, raised_at, relative_errors
from mrv2lab.cases.exercises.base import Exercise
from mrv2lab.cases.workload import workload
from mrv2lab.errors import BadInput
from mrv2lab.graphs.work import Amount, fits_a_graph
from mrv2lab.results import Latency, provenance
from mrv2lab.runner import CUDAGraphMode, ModelRunnerOutput, RunnerConfig
from mrv2lab.upstream import process, releases
from mrv2lab.upstream.outcome import Outcome
from mrv2lab.verdict import eager_shares

CASE = get("lora_short_circuit")


def step(logits, req_ids=("r",)):
    return ModelRunnerOutput(list(req_ids), torch.tensor([logits]), [0], CUDAGraphMode.FULL, 1)


def test_relative_error_is_relative():
    assert relative_errors([step([3.0, 4.4])], [step([3.0, 4.0])]) == [pytest.approx(0.08)]


def test_not_a_number_is_infinitely_wrong():
    errors = relative_errors([step([float("nan"), 1.0])], [step([1.0, 1.0])])
    assert errors == [float("inf")]
    assert judge(errors, []) == "wrong"


def test_runs_of_different_batches_are_not_compared():
    with pytest.raises(ValueError, match="different batches"):
        relative_errors([step([1.0])], [step([1.0], req_ids=("other",))])


@pytest.mark.parametrize(
    ("errors", "eager", "verdict"),
    [
        ([0.0, 1e-3], [], "correct"),
        ([0.0, 1.1e-3], [], "wrong"),
        ([0.0, 0.0], [0.0, 0.1], "correct"),
        ([0.0, 0.0], [0.0, 0.11], "eager"),
        ([0.0, 0.5], [1.0], "wrong"),
    ],
)
def test_judge(errors, eager, verdict):
    assert judge(errors, eager) == verdict


def work(target, step, speculator=None, split=None):
    models = {"target": Amount(*target)} | ({"speculator": Amount(*speculator)} if speculator else {})
    split = sum(amount.splitting for amount in models.values()) if split is None else split
    return SimpleNamespace(work=models | {"step": Amount(0, step, split)})


REFERENCE = work((0, 100, 30), 110)


@pytest.mark.parametrize(
    ("done", "share"),
    [
        (work((70, 0), 10), 0.0),  # all of it replayed
        (work((68, 0), 10), 2 / 70),
        (work((150, 0), 10), 0.0),  # an op may be several nodes
        (work((70, 30, 30), 40), 0.0),  # attention between graphs
        (work((70, 0), 40, split=30), 0.0),  # the same, where the model's pass is not seen
        (work((70, 30), 40), 30 / 70),  # as many other ops are no attention
        (work((70, 37, 37), 47), 0.1),  # more attention than there is
        (work((70, 0), 17), 0.1),  # outside of the model's own pass
        (work((70, 0), 110), 1.0),  # the whole model once more, where its inputs are prepared
        (work((1, 100, 30), 110), 1.0),  # a graph of something else
        (work((0, 0), 10), 1.0),  # no graph at all
    ],
)
def test_the_share_of_eager_work(done, share):
    assert eager_shares([done], [REFERENCE], [True]) == [pytest.approx(share)]
    assert eager_shares([done], [REFERENCE], [False]) == []


def test_of_several_models_the_most_eager_one_counts():
    reference, done = work((0, 100), 190, (0, 80)), work((100, 0), 90, (0, 80))
    assert eager_shares([done], [reference], [True]) == [1.0]


def test_a_step_that_is_right_without_its_replays_did_its_work_elsewhere():
    done = work((70, 0), 10)
    assert eager_shares([done] * 2, [REFERENCE] * 2, [True] * 2, [0.7, 1e-3]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("mode", "num_tokens", "is_decode", "fits"),
    [("FULL", 8, False, True), ("FULL", 9, True, False), ("PIECEWISE", 1, True, True),
     ("NONE", 1, True, False), ("FULL_DECODE_ONLY", 4, True, True), ("FULL_DECODE_ONLY", 4, False, False),
     ("FULL_AND_PIECEWISE", 4, False, True)],
)  # fmt: skip
def test_which_batches_fit_a_graph(mode, num_tokens, is_decode, fits):
    assert fits_a_graph(mode, (2, 8), num_tokens, is_decode=is_decode) is fits


def test_observation_defaults_to_no_speed():
    assert Observation([], [], RunnerConfig()).measure() is None


@pytest.mark.parametrize(
    ("logits", "nodes", "verdict"),
    [([3.0, 4.0], 9, "correct"), ([3.0, 4.0], 0, "eager"), ([3.0, 4.4], 9, "wrong")],
)
def test_only_what_answers_right_is_timed(logits, nodes, verdict):
    timed = []

    def measure():
        timed.append(verdict)
        return Latency(median=2.0, p20=1.0, p80=3.0)

    def observe(variant, rung, shape):
        served = replace(step(logits), work={"target": Amount(nodes, 0 if nodes else 9)})
        reference = replace(step([3.0, 4.0]), work={"target": Amount(0, 9)})
        return Observation([served], [reference], RunnerConfig(), measure=measure)

    run = replace(CASE, observe=observe).run("forced_launch", rung="emulated")
    assert run.verdict == verdict
    is_right = verdict != "wrong"
    assert (run.latency_ms is not None) == bool(timed) == is_right


@pytest.mark.parametrize("loses_context", [True, False])
def test_a_check_that_may_lose_the_context_stays_off_the_gpu(loses_context, monkeypatch):
    rungs = []

    def observe(variant, rung, shape):
        rungs.append(rung)
        return Observation(
            [step([3.0, 4.0])], [step([3.0, 4.0])], RunnerConfig(cudagraph_mode=CUDAGraphMode.NONE)
        )

    monkeypatch.setattr("mrv2lab.cases.base.best_rung", lambda rung: rung)  # as if there were a GPU
    on_cpu = provenance(0, uses_gpu=False)
    monkeypatch.setattr("mrv2lab.cases.base.provenance", lambda seed, **kwargs: on_cpu)
    case = replace(CASE, observe=observe, loses_context=loses_context, exercise=Exercise())
    assert (
        case.check(lambda: None, rung="cuda").run.rung
        == rungs[0]
        == ("emulated" if loses_context else "cuda")
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: get("lora"), "unknown case 'lora'; possible: lora_device_assert, lora_short_circuit"),
        (
            lambda: CASE.run("fixed"),
            "unknown variant of lora_short_circuit 'fixed'; possible: eager, zero_ma",
        ),
        (
            lambda: CASE.run("eager", rung="gpu"),
            "unknown rung of lora_short_circuit 'gpu'; possible: auto",
        ),
        (lambda: CASE.run("eager", batch_size=9), "batch_size=9 is out of range; possible: 1 to 8"),
        (
            lambda: CASE.run("eager", width=1),
            "unknown shape of lora_short_circuit 'width'; possible: batch_si",
        ),
        (
            lambda: CASE.run("eager", rung="source", batch_size=4),
            "rung source has a workload of its own; leave out batch_size",
        ),
        (
            lambda: list(CASE.run_all(["eager", "x"], rung="source")),
            "unknown variant of lora_short_circuit 'x'",
        ),
        (
            lambda: CASE.check(hangs, rung="source"),
            "unknown rung 'source'; possible: auto, emulated, cuda",
        ),
        (
            lambda: get("lora_device_assert").check(hangs, rung="source"),
            "unknown rung 'source'; possible: auto, emulated, cuda",
        ),
    ],
)
def test_bad_input_is_one_clear_line(call, message):
    with pytest.raises(BadInput) as caught:
        call()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def caught(fn):
    with pytest.raises(Exception) as info:
        fn()
    return info.value


def test_an_exception_is_placed_at_its_innermost_line_in_the_package():
    first = inspect.getsourcelines(relative_errors)[1]
    place = raised_at(caught(lambda: relative_errors([step([1.0])], [])))
    file, _, line = place.removesuffix(" in relative_errors").partition(":")
    assert file == "cases/base.py" and first < int(line) < first + 12
    deeper = raised_at(
        caught(lambda: relative_errors([step([1.0, 2.0, 3.0])], [step([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])]))
    )
    assert deeper.endswith(" in relative_error")  # and not in torch, where it was raised


def test_a_launch_that_fails_is_placed_where_it_was_asked_for():
    from mrv2lab.kernels import lora_expand

    flags = (torch.tensor([False]), torch.tensor([1]))
    x, b, y = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, 1), torch.zeros(1, 1)
    error = caught(lambda: lora_expand(x, b, y, *[object()] * 4, *flags))  # no kernel can read these
    assert raised_at(error).endswith(" in lora_expand")


def test_no_place_is_made_up():
    assert raised_at(caught(lambda: 1 / 0)) is None
    assert raised_at(caught(lambda: isolated.run("no_case", "v", "emulated", {}, {}))) is None


EMULATED = replace(CASE, name="on_one_rung", rungs=("emulated",), exercise=None)


@pytest.mark.parametrize(
    "call",
    [
        *(lambda rung=rung: EMULATED.run("eager", rung=rung) for rung in ("source", "vllm", "cuda")),
        lambda: EMULATED.audit("eager", rung="cuda"),
        lambda: replace(EMULATED, exercise=CASE.exercise).check(hangs, rung="cuda"),
        lambda: EMULATED.check_test(hangs, rung="cuda"),
        lambda: EMULATED.live_or_recorded(),
        lambda: EMULATED.run_all(rung="vllm").__next__(),
    ],
)
def test_a_rung_that_a_case_does_not_claim_is_refused_in_one_line(call):
    with pytest.raises(BadInput, match=r"^unknown rung of on_one_rung '\w+'; possible: (auto, )?emulated$"):
        call()


def test_what_is_claimed_runs_and_auto_means_it(monkeypatch):
    monkeypatch.setattr("mrv2lab.cases.base.resolve", {"auto": "cuda", "emulated": "emulated"}.get)
    assert EMULATED.checked_rung("auto", {}) == "emulated" and CASE.checked_rung("auto", {}) == "cuda"


@pytest.mark.parametrize(
    "ask", [lambda: EMULATED.hint(1), lambda: EMULATED.solution(), lambda: EMULATED.check(hangs)]
)
def test_a_case_without_an_exercise_says_where_it_belongs(ask):
    with pytest.raises(BadInput, match=r"^on_one_rung has no exercise: .*exercises/on_one_rung\.py$"):
        ask()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_variants_are_functions_of_the_cases_own_file(case):
    assert {variant.fn.__module__ for variant in case.variants} == {f"mrv2lab.cases.{case.name}"}


def test_no_variant_is_named_in_the_runner():
    # A bug must arise by its mechanism: nothing below the cases may know that they exist.
    import mrv2lab.runner as runner

    folder = runner.__path__[0]
    from pathlib import Path

    names = {v.name for case in CASES.values() for v in case.variants} - {"eager"}
    text = "".join(path.read_text() for path in Path(folder).rglob("*.py"))
    assert not [name for name in names if re.search(rf"\b{name}\(|import .*\b{name}\b|if .*\b{name}\b", text)]


def hangs(adapter_manager, input_batch):
    """A repair that never ends."""
    while True:
        pass


def test_a_function_that_hangs_is_stopped_and_the_next_run_works(monkeypatch):
    monkeypatch.setattr("mrv2lab.cases.base.CHECK_CPU_S", 0.5)
    monkeypatch.setattr("mrv2lab.limits.PATIENCE", 10_000)  # by no clock
    run = CASE.check(hangs, rung="emulated").run
    stopped = "TimeoutError: hangs ran for 0.5 s without a result and was stopped"
    assert (run.verdict, run.message) == ("failed", stopped)
    monkeypatch.undo()
    assert CASE.run("zero_mapping", rung="emulated", batch_size=1, num_layers=1).verdict == "wrong"


# ---- vLLM's own classes ----


@pytest.fixture
def source(monkeypatch):
    """Stands in for the process of a probe: notes what it is asked for, and finds steps off by a half."""
    asked = []

    def run_variants(case, variants, version=releases.TARGET):
        asked.append((case, list(variants), version))
        steps = {
            "errors": [0.0, 0.5],
            "step_modes": ["eager", "graph"],
            "kernels": {"k": 2},
            "metrics": {"m": 1.0},
        }
        return [Outcome(verdict="wrong", **steps) for _ in variants]

    monkeypatch.setattr(process, "run_variants", run_variants)
    return asked


def test_all_variants_run_in_one_process_on_source(source):
    runs = list(CASE.run_all(rung="source"))
    names = [variant.name for variant in CASE.variants]
    assert source == [(CASE.name, names, releases.TARGET)]
    assert [run.variant for run in runs] == names
    assert [run.role for run in runs] == [variant.role for variant in CASE.variants]
    assert [run.as_expected for run in runs] == [variant.expected == "wrong" for variant in CASE.variants]


def test_a_run_on_source_says_which_release_it_was_and_claims_no_speed(source):
    run = CASE.run("zero_mapping", rung="source")
    assert source == [(CASE.name, ["zero_mapping"], releases.TARGET)]
    assert (run.case, run.rung, run.verdict, run.as_expected) == (CASE.name, "source", "wrong", True)
    assert (run.provenance.vllm, run.provenance.gpu) == (releases.TARGET, None)
    assert (run.latency_ms, run.shape) == (None, {})
    assert (run.errors, run.step_modes) == ([0.0, 0.5], ["eager", "graph"])
    assert (run.kernels, run.metrics) == ({"k": 2}, {"m": 1.0})


def test_a_crash_in_vllm_keeps_its_message_and_its_place(monkeypatch):
    crash = Outcome(verdict="crash", message="IndexError: x", where="vllm/lora/layers/base.py:9 in forward")
    monkeypatch.setattr(process, "run_variants", lambda *args: [crash])
    run = CASE.run("eager", rung="source")
    assert (run.message, run.where) == (crash.message, crash.where)
    assert not run.as_expected


def test_a_process_that_lost_a_variant_is_noticed(monkeypatch):
    monkeypatch.setattr(process, "run_variants", lambda *args: [])
    with pytest.raises(ValueError, match="shorter"):
        CASE.run("eager", rung="source")


def test_a_failed_probe_is_bad_input_and_no_verdict(monkeypatch):
    def fails(*args):
        raise process.ProbeFailed("no result")

    monkeypatch.setattr(process, "run_variants", fails)
    with pytest.raises(BadInput, match="no result"):
        CASE.run("eager", rung="source")


def test_auto_is_never_source():
    assert CASE.checked_rung("auto", {"batch_size": 4}) in ("emulated", "cuda")
    assert CASE.checked_rung("source", {}) == "source"


def test_where_the_reference_has_no_work_of_a_models_own_a_replay_is_enough():
    nothing = SimpleNamespace(work={"target": Amount(0, 2, 2), "step": Amount(0, 2, 2)})
    replayed = SimpleNamespace(work={"target": Amount(nodes=3), "step": Amount()})
    assert eager_shares([replayed], [nothing], [True]) == [0.0]
    assert eager_shares([SimpleNamespace(work={"step": Amount()})], [nothing], [True]) == [1.0]


def test_a_node_stands_for_one_launch_unless_it_is_said():
    half = SimpleNamespace(work={"target": Amount(nodes=5), "step": Amount()})
    wanted = SimpleNamespace(work={"target": Amount(ops=10), "step": Amount(ops=10)})
    assert eager_shares([half], [wanted], [True]) == [0.5]
    assert eager_shares([half], [wanted], [True], launches_per_node=2) == [0.0]


def test_each_step_needs_a_word_on_whether_it_fits():
    step = SimpleNamespace(work={"target": Amount(nodes=5), "step": Amount()})
    wanted = SimpleNamespace(work={"target": Amount(ops=5), "step": Amount(ops=5)})
    with pytest.raises(ValueError, match="zip"):
        eager_shares([step] * 2, [wanted] * 2, [True])


def test_adapters_come_in_turn_and_every_fourth_request_has_none():
    requests = workload({"batch_size": 4, "num_steps": 6})
    assert [request.lora_id for request in requests] == [1, 2, 0, 3] * 2


def test_memory_is_filled_with_noughts_or_ones():
    with pytest.raises(BadInput, match="fill_memory=2 is out of range; possible: 0 to 1"):
        get("lora_device_assert").run("unwritten", rung="emulated", fill_memory=2)


def test_a_cell_and_a_button_that_run_at_the_same_time_do_not_disturb_each_other():
    shape = {"num_layers": 1, "batch_size": 2, "num_steps": 9}
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda v: CASE.run(v, rung="emulated", **shape), ["forced_launch", "eager"]))
    assert [run.verdict for run in runs] == ["correct", "correct"], [run.message for run in runs]
