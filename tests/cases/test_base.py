"""How runs are judged, and what is refused."""

import inspect
import re
from dataclasses import replace

import pytest
import torch

from mrv2lab.cases import CASES, get, isolated
from mrv2lab.cases.base import Observation, judge, raised_at, relative_errors
from mrv2lab.cases.exercises.base import Exercise
from mrv2lab.errors import BadInput
from mrv2lab.results import Latency, provenance
from mrv2lab.runner import CUDAGraphMode, ModelRunnerOutput
from mrv2lab.upstream import process, releases
from mrv2lab.upstream.outcome import Outcome

CASE = get("lora_short_circuit")


def step(logits, num_replays=1, req_ids=("r",)):
    return ModelRunnerOutput(list(req_ids), torch.tensor([logits]), [0], CUDAGraphMode.FULL, num_replays)


def test_relative_error_is_relative():
    assert relative_errors([step([3.0, 4.4])], [step([3.0, 4.0])]) == [pytest.approx(0.08)]


def test_not_a_number_is_infinitely_wrong():
    errors = relative_errors([step([float("nan"), 1.0])], [step([1.0, 1.0])])
    assert errors == [float("inf")]
    assert judge(errors, [step([1.0])], uses_graphs=True) == "wrong"


def test_runs_of_different_batches_are_not_compared():
    with pytest.raises(ValueError, match="different batches"):
        relative_errors([step([1.0])], [step([1.0], req_ids=("other",))])


@pytest.mark.parametrize(
    ("errors", "num_replays", "uses_graphs", "verdict"),
    [
        ([0.0, 1e-4], 1, True, "correct"),
        ([0.0, 0.5], 1, True, "wrong"),
        ([0.0, 0.5], 0, True, "wrong"),
        ([0.0, 0.0], 0, True, "eager"),
        ([0.0, 0.0], 0, False, "correct"),
    ],
)
def test_judge(errors, num_replays, uses_graphs, verdict):
    assert judge(errors, [step([1.0], num_replays)], uses_graphs=uses_graphs) == verdict


def test_observation_defaults_to_no_speed():
    assert Observation([], []).measure() is None


@pytest.mark.parametrize(
    ("logits", "num_replays", "verdict"),
    [([3.0, 4.0], 1, "correct"), ([3.0, 4.0], 0, "eager"), ([3.0, 4.4], 1, "wrong")],
)
def test_only_what_answers_right_is_timed(logits, num_replays, verdict):
    timed = []

    def measure():
        timed.append(verdict)
        return Latency(median=2.0, p20=1.0, p80=3.0)

    def observe(variant, rung, shape):
        return Observation([step(logits, num_replays)], [step([3.0, 4.0])], measure=measure)

    run = replace(CASE, observe=observe).run("forced_launch", rung="emulated")
    assert run.verdict == verdict
    is_right = verdict != "wrong"
    assert (run.latency_ms is not None) == bool(timed) == is_right


@pytest.mark.parametrize("loses_context", [True, False])
def test_a_check_that_may_lose_the_context_stays_off_the_gpu(loses_context, monkeypatch):
    rungs = []

    def observe(variant, rung, shape):
        rungs.append(rung)
        return Observation([step([3.0, 4.0])], [step([3.0, 4.0])])

    monkeypatch.setattr("mrv2lab.cases.base.best_rung", lambda rung: rung)  # as if there were a GPU
    monkeypatch.setattr(
        "mrv2lab.cases.base.provenance", lambda seed, uses_gpu: provenance(seed, uses_gpu=False)
    )
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
        (lambda: CASE.run("eager", rung="gpu"), "unknown rung 'gpu'; possible: auto, emulated, cuda, source"),
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


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_variants_are_named_functions_that_say_what_they_are(case):
    roles = [variant.role for variant in case.variants]
    assert "baseline" in roles and "buggy" in roles and "fixed" in roles
    for variant in case.variants:
        assert variant.fn.__module__ == f"mrv2lab.cases.{case.name}"
        assert inspect.getdoc(variant.fn)


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
    monkeypatch.setattr("mrv2lab.cases.base.CHECK_TIMEOUT_S", 0.5)
    run = CASE.check(hangs, rung="emulated").run
    stopped = "TimeoutError: hangs gave no result within 0.5 s and was stopped"
    assert (run.verdict, run.message) == ("crash", stopped)
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
