"""Repairs that people would try on #47561, and what each is told. Checked on the emulator."""

from dataclasses import replace
from functools import partial

import pytest

from mrv2lab.cases import get
from mrv2lab.runner import AttentionStatePair

CASE = get("stale_view")
SMALL = {"batch_size": 2, "num_steps": 9}


def stub(speculator, attn_states, prepare_inputs_to_capture):
    raise NotImplementedError("write the repair")


def prepared_first(speculator, attn_states, prepare):
    speculator.capture({desc: AttentionStatePair(prepare(desc), prepare(desc)) for desc in attn_states})


def clones_of_what_was_kept(speculator, attn_states, prepare):
    def clone(state):
        return type(state)(**{k: v.clone() if hasattr(v, "clone") else v for k, v in vars(state).items()})

    speculator.capture({desc: AttentionStatePair(*map(clone, kept)) for desc, kept in attn_states.items()})


def captures_nothing(speculator, attn_states, prepare):
    pass


WRONG = [
    (CASE.variant("one_state").fn, "kept views", "crash"),
    (CASE.variant("kept_pairs").fn, "kept views", "crash"),
    (CASE.variant("zeroed_buffers").fn, "zeroed", "crash"),
    (CASE.variant("own_copies").fn, "nobody refreshes", "wrong"),
    (prepared_first, "prepared too early", "crash"),
    (clones_of_what_was_kept, "copied too late", "crash"),
    (captures_nothing, None, "failed"),
]


@pytest.mark.parametrize(("fn", "name", "verdict"), WRONG, ids=[fn.__name__ for fn, *_ in WRONG])
def test_a_wrong_repair_is_recognised_by_what_it_did(fn, name, verdict, backend):
    check = CASE.check(fn, rung=backend, **SMALL)
    assert (check.status, check.run.rung) == ("not solved yet", "emulated")
    assert (check.run.verdict, check.explanation and check.explanation.name) == (verdict, name)


def test_who_zeroes_everything_is_told_what_attention_follows(backend):
    told = repr(CASE.check(CASE.variant("zeroed_buffers").fn, rung=backend, **SMALL))
    assert "input_ids and hidden_states were zero when it captured" in told
    assert "the plan in the metadata builder's buffer" in told


# ---- what is right ----


def one_function_for_each_size(speculator, attn_states, prepare):
    speculator.capture({desc: partial(prepare, desc) for desc in attn_states})


def a_plan_of_zeros(speculator, attn_states, prepare):
    for kept in attn_states.values():
        kept.captured.scheduler_metadata.zero_()
    speculator.capture(attn_states)


SOLUTION = CASE.variant("fresh_inputs").fn
OTHERS = [(one_function_for_each_size, []), (a_plan_of_zeros, ["zeros ask for nothing"])]
IDS = [fn.__name__ for fn, _ in OTHERS]


@pytest.mark.slow  # test_check has the solution
@pytest.mark.parametrize(("fn", "remarks"), [(SOLUTION, []), *OTHERS], ids=[SOLUTION.__name__, *IDS])
def test_a_right_repair_is_solved(fn, remarks, backend):
    check = CASE.check(fn, rung=backend, **SMALL)
    assert check.solved, check
    assert [remark.name for remark in check.remarks] == remarks


@pytest.mark.parametrize(("fn", "remarks"), OTHERS, ids=IDS)
def test_another_right_repair_is_solved(fn, remarks, backend):
    at_one_shape = replace(CASE, exercise=replace(CASE.exercise, harder=()))
    check = at_one_shape.check(fn, rung=backend, **SMALL)
    assert check.solved and [remark.name for remark in check.remarks] == remarks, check


def test_the_stub_is_not_solved_yet(backend):
    check = CASE.check(stub, rung=backend, **SMALL)
    assert repr(check).startswith("not solved yet: stub is still the stub\nrung: ")
    assert check.explanation is None
