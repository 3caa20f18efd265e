"""Repairs that people would try on #42304 and #44050, and what each is told."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.cases import get
from mrv2lab.cases.exercises.breakable_graph import PwModelWatch
from mrv2lab.graphs.breakable import eager_break_during_capture
from mrv2lab.runner import CUDAGraphMode
from mrv2lab.runner.forward_context import get_forward_context

CASE = get("breakable_graph")
AT_ONE_SHAPE = replace(CASE, exercise=replace(CASE.exercise, harder=()))
SMALL = {"batch_size": 2, "num_steps": 9}


def attentions(model):
    return [model.layer(index).attn for index in range(len(model.layers))]


def stub(model, manager):
    raise NotImplementedError("write the repair")


def returns_its_result(query, key, value, output, layer):
    return layer.attend(query, key, value, get_forward_context())


def writes_a_copy(query, key, value, output, layer):
    output.clone().copy_(layer.attend(query, key, value, get_forward_context()))


def op_with_max_seq_len(length):
    def op(query, key, value, output, layer):
        meta = replace(get_forward_context(), max_seq_len=length)
        output.copy_(layer.attend(query, key, value, meta))

    return op


def plain_model(model, manager):
    return model


def breaks_that_nobody_uses(model, manager):
    for attn in attentions(model):
        attn.op = eager_break_during_capture(attn.op)
    return model


def no_graphs(model, manager):
    manager.set_mode(CUDAGraphMode.NONE)
    manager.use_breakable_cg = True
    return model


def whole(model, manager):
    manager.use_breakable_cg = True
    return model


def first_layer_only(model, manager):
    manager.use_breakable_cg = True
    attn = model.layer(0).attn
    attn.op = eager_break_during_capture(attn.op)
    return model


def op_returns(model, manager):
    manager.use_breakable_cg = True
    for attn in attentions(model):
        attn.op = eager_break_during_capture(returns_its_result)
    return model


def op_returns_unbroken(model, manager):
    manager.use_breakable_cg = True
    for attn in attentions(model):
        attn.op = returns_its_result
    return model


def break_at_forward(model, manager):
    manager.use_breakable_cg = True
    for attn in attentions(model):
        attn.forward = eager_break_during_capture(attn.forward)
    return model


def eager_on_everything(model, manager):
    manager.use_breakable_cg = True
    return eager_break_during_capture(model.forward)


def output_of_a_copy(model, manager):
    manager.use_breakable_cg = True
    for attn in attentions(model):
        attn.op = eager_break_during_capture(writes_a_copy)
    return model


def half_the_length(model, manager):
    manager.use_breakable_cg = True
    for attn in attentions(model):
        attn.op = op_with_max_seq_len(8)
    return model


WRONG = [
    (plain_model, "nobody captures", "eager"),
    (breaks_that_nobody_uses, "breaks without a capture", "eager"),
    (no_graphs, "no sizes", "eager"),
    (whole, "whole model captured", "wrong"),
    (first_layer_only, "some layers captured", "wrong"),
    (op_returns, "returns its result", "failed"),
    (op_returns_unbroken, "returns its result", "wrong"),
    (break_at_forward, "returns its result", "failed"),
    (eager_on_everything, "returns its result", "failed"),
    (output_of_a_copy, "output not written", "wrong"),
    (half_the_length, "own length too short", "wrong"),
]


@pytest.mark.parametrize(("fn", "name", "verdict"), WRONG, ids=[fn.__name__ for fn, *_ in WRONG])
def test_a_wrong_repair_is_recognised_by_what_it_did(fn, name, verdict, backend):
    check = CASE.check(fn, rung=backend, **SMALL)

    assert (check.status, check.run.rung) == ("not solved yet", backend)
    assert (check.run.verdict, check.explanation and check.explanation.name) == (verdict, name)


def test_what_a_replay_attended_to_is_no_result_of_a_later_op():
    """A replay calls what stands inside the op. Nobody compares then, and nothing may be left over."""
    attn = SimpleNamespace(attend=lambda query, *_: query + 1, op=lambda *_: None)
    watch, x = PwModelWatch(plain_model), torch.zeros(2)
    watch._watch_attention(0, attn)
    attn.attend(x, x, x, None)
    attn.op(x, x, x, x, attn)
    assert watch.unwritten == set()


# ---- what is right ----


def longest(model, manager):
    manager.use_breakable_cg = True
    for attn in attentions(model):
        attn.op = op_with_max_seq_len(64)
    return model


RIGHT = [*(CASE.variant(name).fn for name in ("breakable", "piecewise", "full_graph")), longest]


@pytest.mark.parametrize("fn", RIGHT[1:], ids=lambda fn: fn.__name__)
def test_another_right_repair_is_solved(fn, backend):
    check = AT_ONE_SHAPE.check(fn, rung=backend, **SMALL)
    assert check.solved, check


@pytest.mark.slow  # test_check has the solution
@pytest.mark.parametrize("fn", RIGHT, ids=lambda fn: fn.__name__)
def test_a_right_repair_is_solved(fn, backend):
    check = CASE.check(fn, rung=backend, **SMALL)
    assert check.solved, check


def test_watching_changes_nothing(backend):
    ran, check = (
        CASE.run("breakable", rung=backend, **SMALL),
        CASE.check(CASE.variant("breakable").fn, rung=backend, **SMALL),
    )
    assert (check.run.kernels, check.run.step_modes) == (ran.kernels, ran.step_modes)


def test_the_stub_is_not_solved_yet(backend):
    check = CASE.check(stub, rung=backend, **SMALL)
    assert repr(check).startswith("not solved yet: stub is still the stub\nrung: ")
    assert check.explanation is None
