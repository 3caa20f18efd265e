"""Repairs that people would try on the grid that is one id short, and what each is told."""

import functools
from dataclasses import replace

import pytest

from mrv2lab.cases import get
from mrv2lab.cases.base import Limit
from mrv2lab.cases.lora_frozen_grid import share_out
from mrv2lab.runner import LoRAMapping

CASE = get("lora_frozen_grid")
SHORT = replace(CASE, limits=CASE.limits | {"num_steps": Limit(9, 9, 9)})  # where it goes wrong at once
AT_ONE_SHAPE = replace(SHORT, exercise=replace(CASE.exercise, harder=()))
SMALL = {"num_layers": 1, "batch_size": 2}


@functools.cache
def checked(fn):
    # Fewer than four requests lose nothing that they have until the hardest shape.
    shape = {"num_layers": 1} if fn is nobody_first else SMALL
    return SHORT.check(fn, rung="emulated", **shape)


def adapters(manager, key):
    return list(range(1, min(key, len(manager.lora_index_to_id)) + 1))


def stub(adapter_manager, input_batch, num_active_loras):
    raise NotImplementedError("write the repair")


def nobody_first(adapter_manager, input_batch, num_active_loras):
    share_out(adapter_manager, input_batch, [0, *adapters(adapter_manager, num_active_loras)])


def only_program(adapter_manager, input_batch, num_active_loras):
    ids = (num_active_loras,) * input_batch.num_reqs
    adapter_manager.set_adapter_mapping(LoRAMapping(ids, ids))


def a_token_too_many(adapter_manager, input_batch, num_active_loras):
    ids = (1,) * (input_batch.num_tokens_after_padding + 1)
    adapter_manager.set_active_adapters({1}, LoRAMapping(ids, ids))


WRONG = [
    (CASE.variant("keyed_short").fn, "too small", "wrong"),
    (CASE.variant("one_slot").fn, "nothing programmed", "wrong"),
    (nobody_first, "no kernels", "wrong"),
    (only_program, "adapter in no slot", "failed"),
    (a_token_too_many, "too many entries", "failed"),
]


@pytest.mark.parametrize(("fn", "name", "verdict"), WRONG, ids=[fn.__name__ for fn, *_ in WRONG])
def test_a_wrong_repair_is_recognised_by_what_it_did(fn, name, verdict):
    check = checked(fn)
    assert (check.status, check.run.verdict) == ("not solved yet", verdict), check
    assert check.explanation is not None and check.explanation.name == name, check


def test_a_repair_of_the_last_key_alone_is_told_that_nobody_gets_there():
    check = SHORT.check(CASE.variant("keyed_last").fn, rung="emulated", num_layers=1, batch_size=3)
    assert check.run.verdict == "wrong" and check.explanation.name == "only the last key", check


def test_what_was_seen_is_said_with_its_numbers():
    check = checked(CASE.variant("keyed_short").fn)
    assert check.explanation.seen == (
        "The graph of key 1 for 2 requests has room for 1 id; such a batch may have 2."
    )


def every_adapter(adapter_manager, input_batch, num_active_loras):
    share_out(adapter_manager, input_batch, [*adapters(adapter_manager, 99), 0] if num_active_loras else [0])


RIGHT = [(CASE.variant("keyed_full").fn, set()), (every_adapter, {"the same for every key"})]


@pytest.mark.slow  # test_check has the solution
@pytest.mark.parametrize(("fn", "remarks"), RIGHT, ids=[fn.__name__ for fn, _ in RIGHT])
def test_a_right_repair_is_solved(fn, remarks):
    check = CASE.check(fn, rung="emulated", num_layers=1)
    assert check.solved, check
    assert {remark.name for remark in check.remarks} == remarks


def test_another_right_repair_is_solved_and_remarked():
    check = AT_ONE_SHAPE.check(every_adapter, rung="emulated", num_layers=1, batch_size=3)
    assert check.solved and {remark.name for remark in check.remarks} == {"the same for every key"}, check


def test_the_stub_is_not_solved_yet():
    check = CASE.check(stub, rung="emulated", **SMALL)
    assert repr(check).startswith("not solved yet: stub is still the stub\nrung: ")
