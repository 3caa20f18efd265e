"""Every fault fails as it says, alone and in company, and an engine without any is right."""

import itertools
import re
from dataclasses import replace

import pytest

from mrv2lab.errors import EmulatorLimit
from mrv2lab.mystery import engine, runs, survey
from mrv2lab.mystery.answer import Guess, marked
from mrv2lab.mystery.faults import COMBINATIONS, FAULTS, PAIRS, RIGHT_PARTS
from mrv2lab.mystery.workload import Serving
from mrv2lab.runner import CUDAGraphMode, ModelRunner
from mrv2lab.verdict import TOLERANCE, relative_error


def by_part(value):
    if isinstance(value, tuple):
        return "+".join(map(by_part, value))
    return value.part.__name__ if hasattr(value, "part") else None


each_fault = pytest.mark.parametrize("fault", FAULTS, ids=by_part)
FEW = [
    ("read_kv_scaled_up", "write_positions_in_turn"),  # one audit names both
    ("context_with_decode", "dispatch_exact"),  # two have to
    ("context_with_decode", "write_slots_of_tokens"),  # one half needs a human
]


def parts(pair):
    return tuple(fault.part.__name__ for fault in pair)


each_pair = pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=[pytest.mark.slow] * (parts(pair) not in FEW)) for pair in PAIRS],
    ids=by_part,
)


# ---- nothing is wrong with the engine itself ----


def test_an_engine_without_faults_is_right_and_replays(backend):
    run = runs.run_with((), backend)
    assert run.verdict == "correct" and run.max_error < TOLERANCE
    asked = runs.batches(backend)
    assert [mode == "graph" for mode in run.step_modes] == [batch.fits_a_graph for batch in asked]


@pytest.mark.parametrize("step", [1, 4, 6, 10, 13])  # full, padded, with a prompt, late
def test_an_audit_of_an_engine_without_faults_is_silent(backend, step):
    assert runs.audit_with((), backend, step).findings == ()


def test_its_parts_compute_what_the_mini_runner_computes(backend):
    plain = ModelRunner(engine.CONFIG, backend)
    plain.resolve_cudagraph_mode(CUDAGraphMode.NONE)
    engine._into_adapters(plain, plain.model, RIGHT_PARTS)
    steps = zip(Serving(plain).steps(), runs.reference(backend), strict=True)
    assert max(relative_error(step.logits, other.logits) for step, other in steps) < TOLERANCE


def test_the_workload_has_every_kind_of_step():
    asked = runs.batches("emulated")
    fit = [batch for batch in asked if batch.fits_a_graph]
    assert any(not batch.fits_a_graph for batch in asked)
    assert any(batch.num_tokens > batch.num_reqs for batch in fit)
    assert {batch.num_tokens in engine.CONFIG.cudagraph_capture_sizes for batch in fit} == {True, False}


# ---- one fault ----


def test_there_are_more_than_twelve_and_each_place_has_one():
    assert len(FAULTS) >= 12
    assert set(RIGHT_PARTS) == {fault.place for fault in FAULTS}
    assert len({fault.name for fault in FAULTS}) == len({fault.part for fault in FAULTS}) == len(FAULTS)
    assert not {fault.part for fault in FAULTS} & set(RIGHT_PARTS.values())


@each_fault
def test_a_fault_shows_its_verdict(fault, backend):
    run = runs.run_with((fault,), backend)
    assert run.verdict == fault.verdict != "correct"
    assert (run.max_error > 0.1) == (fault.verdict == "wrong")


def test_a_capture_that_is_refused_for_another_reason_is_no_faults_verdict(monkeypatch):
    [loud] = [fault for fault in FAULTS if fault.crash]
    monkeypatch.setattr(runs, "make_ready", refuse)
    monkeypatch.setattr(runs, "serve_with", runs.serve_with.__wrapped__)  # nothing of it is kept
    for faults in ((), (loud,)):
        run = runs.run_with(faults, "emulated")
        assert (run.verdict, run.message) == ("failed", "EmulatorLimit: it cannot be recorded")
        assert run.log_tail[-1].endswith(run.message) and not run.as_expected


def refuse(runner):
    raise EmulatorLimit("it cannot be recorded")


@each_fault
def test_it_is_the_graphs_unless_the_inputs_are_wrong_before(fault, backend):
    without_graphs = runs.run_with((fault,), backend, graphs=False).verdict
    assert without_graphs == ("wrong" if fault.place == "input_batch.write_seq_lens" else "correct")


@each_fault
def test_an_audit_names_a_fault_or_a_human_has_to(fault, backend):
    steps = runs.suspects((fault,), backend)
    report = runs.audit_with((fault,), backend, steps[0])
    if fault.human:
        assert fault.kinds == ("audit-silent",)
        others = [runs.audit_with((fault,), backend, step) for step in steps[1:]]
        assert all(not silent.findings for silent in (report, *others))
    else:
        assert runs.names(fault, report), str(report)
        assert report.findings[0].kind in fault.kinds


@each_fault
def test_names_in_the_engine_give_nothing_away(fault):
    told = f"{fault.part.__name__} {fault.part.__doc__} {fault.part.__module__} {fault.place}"
    assert not re.search("bug|fault|wrong|broken|stale|frozen|mystery_", told)
    assert fault.part.__module__ == fault.right_part.__module__
    # Every part has a name of its own, not only those that fail.
    seam = fault.place.split(".")[1]
    assert seam not in (fault.part.__name__, fault.right_part.__name__)


@each_fault
def test_the_story_says_how_it_is_repaired(fault):
    assert 2 <= len(fault.story.splitlines()) <= 10 and len(fault.story) > 300
    assert "\nRepair: " in fault.story
    assert bool(fault.human) == (fault.kinds == ("audit-silent",))


# A wrong kind is held against an audit of every suspect step; of these three nothing is left to audit.
AUDITED = [fault for fault in FAULTS if fault.human][:2] + [fault for fault in FAULTS if fault.crash][:1]


@pytest.mark.parametrize(
    ("fault", "kinds_too"),
    [
        *((fault, fault in AUDITED) for fault in FAULTS),
        *(pytest.param(f, True, marks=pytest.mark.slow) for f in FAULTS if f not in AUDITED),
    ],
    ids=by_part,
)
def test_only_the_right_answer_is_full(fault, kinds_too):
    """Here, where what an answer is held against has been run and audited."""

    def answered(named, cause):
        return marked([Guess(named.kinds[0], named.place, cause)], (fault,), "emulated")

    right = answered(fault, fault.causes[0])
    assert right.is_solved and right.points == right.most_points == 4 and not right.remarks
    for cause in fault.causes:
        assert answered(fault, f"self.x.{cause}[0]").is_solved
    for other in FAULTS:
        if other is not fault:
            own_kind = kinds_too or other.place == fault.place
            named = other if own_kind else replace(other, kinds=fault.kinds)
            answer = answered(named, other.causes[0])
            assert not answer.is_solved and answer.points < 4 and answer.remarks, other.name


# ---- two faults ----


def seen(faults, backend):
    run = runs.run_with(faults, backend)
    return run.verdict, run.step_modes, [round(error, 2) for error in run.errors]


@each_pair
def test_each_half_of_a_pair_shows_beside_the_other(pair, backend):
    both = seen(pair, backend)
    for alone in pair:
        assert both != seen((alone,), backend), f"{alone.name} hides the other"
    assert both[0] != "correct"


@each_pair
def test_audits_name_both_halves_of_a_pair(pair, backend):
    seen = survey.observed(pair, backend)
    assert seen.is_accounted_for and set(seen.found) == {fault.name for fault in pair if not fault.human}


def test_what_a_seed_may_draw():
    assert {*FEW} <= {parts(pair) for pair in PAIRS}
    assert {len(faults) for faults in COMBINATIONS} == {1, 2}
    assert {faults[0] for faults in COMBINATIONS if len(faults) == 1} == set(FAULTS)
    for a, b in PAIRS:
        assert a.place != b.place
        assert "crash" not in (a.verdict, b.verdict), "a crash at capture hides the other"
    assert all(set(a) != set(b) for a, b in itertools.combinations(PAIRS, 2))
