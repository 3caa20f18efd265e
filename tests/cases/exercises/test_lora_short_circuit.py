"""Repairs that people would try on #43314, and what each is told."""

import functools
from dataclasses import replace

import pytest
import torch

from mrv2lab.cases import get
from mrv2lab.graphs import host
from mrv2lab.runner import LoRAMapping

CASE = get("lora_short_circuit")
AT_ONE_SHAPE = replace(CASE, exercise=replace(CASE.exercise, harder=()))
SMALL = {"num_layers": 1, "batch_size": 2, "num_steps": 9}
few = pytest.mark.usefixtures("few_sizes")


@functools.cache
def checked(fn, backend):
    return CASE.check(fn, rung=backend, **SMALL)


def metas(adapter_manager):
    for wrapper in adapter_manager.punica_wrapper_mapping.values():
        yield from (wrapper.token_mapping_meta, wrapper.prompt_mapping_meta)


def map_to(adapter, adapter_manager, input_batch):
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    adapter_manager.set_adapter_mapping(LoRAMapping((adapter,) * tokens, (adapter,) * requests))


def stub(adapter_manager, input_batch):
    raise NotImplementedError("write the repair")


def the_bug_again(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)


def flag_not_count(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu[0] = False


def count_not_flag(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        meta.num_active_loras_cpu[0] = 1


def only_prompts(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for wrapper in adapter_manager.punica_wrapper_mapping.values():
        wrapper.prompt_mapping_meta.no_lora_flag_cpu[0] = False
        wrapper.prompt_mapping_meta.num_active_loras_cpu[0] = 1


def flag_before_the_mapping(adapter_manager, input_batch):
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu[0] = False
        meta.num_active_loras_cpu[0] = 1
    map_to(0, adapter_manager, input_batch)


def a_copy_of_the_flag(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        flag = meta.no_lora_flag_cpu.clone()
        flag[0] = False
        meta.num_active_loras_cpu[0] = 1


def a_new_flag(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu = torch.tensor([False])
        meta.num_active_loras_cpu[0] = 1


def a_bool_for_a_flag(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu = False


def nothing(adapter_manager, input_batch):
    pass


def an_adapter_in_no_slot(adapter_manager, input_batch):
    map_to(1, adapter_manager, input_batch)


def adapter_one(adapter_manager, input_batch):
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    adapter_manager.set_active_adapters({1}, LoRAMapping((1,) * tokens, (1,) * requests))


def an_adapter_that_nobody_uses(adapter_manager, input_batch):
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    adapter_manager.set_active_adapters({1}, LoRAMapping((0,) * tokens, (0,) * requests))


WRONG = [
    (the_bug_again, "flag up", "wrong"),
    (count_not_flag, "flag up", "wrong"),
    (flag_not_count, "count left at zero", "wrong"),
    (nothing, "nothing written", "wrong"),
    (a_bool_for_a_flag, "flag is no tensor", "failed"),
    (only_prompts, "prompts only", "wrong"),
    (flag_before_the_mapping, "flag set again", "wrong"),
    (a_copy_of_the_flag, "flag of a copy", "wrong"),
    (an_adapter_in_no_slot, "adapter in no slot", "failed"),
    (an_adapter_that_nobody_uses, "adapter that nobody uses", "wrong"),
]


def test_a_mapping_with_adapters_is_left_to_captures_that_it_does_not_fit():
    check = CASE.check(
        adapter_one, rung="emulated", **SMALL
    )  # a GPU may overwrite memory of others and go on
    assert (check.status, check.run.verdict) == ("not solved yet", "failed")
    assert check.run.message.startswith("IllegalAccess")
    assert (
        check.explanation.name == "mapping left to smaller batches" and "64 entries" in check.explanation.seen
    )


@pytest.mark.parametrize(("fn", "name", "verdict"), WRONG, ids=[fn.__name__ for fn, *_ in WRONG])
def test_a_wrong_repair_is_recognised_by_what_it_did(fn, name, verdict, backend, request):
    if fn is not flag_not_count:  # at its hardest shape the prompt fits the largest graph
        request.getfixturevalue("few_sizes")
    check = checked(fn, backend)
    assert (check.status, check.run.verdict, check.run.rung) == ("not solved yet", verdict, backend)
    assert check.explanation is not None and check.explanation.name == name


def test_what_was_seen_is_said_with_its_numbers():
    check = checked(flag_not_count, "emulated")
    assert check.harder == CASE.exercise.harder[-1] and check.harder["specialize_active_lora"] == 1
    status, wrong, seen, why = repr(check).splitlines()[:4]
    assert (
        status
        == "not solved yet: wrong when it was also tried with batch_size=1, num_steps=4, num_layers=2, "
        "specialize_active_lora=1"
    )
    assert wrong == "step 0 (of 0 to 3) went wrong first: relative error > 0.1, replayed from a graph"
    assert seen == (
        "seen: At capture token_mapping_meta.no_lora_flag_cpu was False and num_active_loras_cpu was 0; "
        "the graph holds no LoRA kernel."
    )
    assert why.startswith("why: With specialize_active_lora")


def test_a_new_flag_is_device_memory_on_the_emulator_and_passes_on_a_gpu(backend):
    check = CASE.check(a_new_flag, rung=backend, **SMALL)
    if backend == "cuda":
        assert check.solved and "flag rebound" in {remark.name for remark in check.remarks}
    else:
        assert check.run.message.startswith("HostSyncError") and not check.solved
        assert check.explanation.name == "flag is device memory"


def a_count_of_nothing(adapter_manager, input_batch):
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu[0] = False
        meta.num_active_loras_cpu = None


def test_a_count_that_is_no_number_is_not_told_to_be_zero():
    check = CASE.check(a_count_of_nothing, rung="emulated", **SMALL)
    assert check.run.verdict == "failed" and check.explanation is None


# ---- what is right ----


def tokens_only(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for wrapper in adapter_manager.punica_wrapper_mapping.values():
        wrapper.token_mapping_meta.no_lora_flag_cpu[0] = False
        wrapper.token_mapping_meta.num_active_loras_cpu[0] = 1


def a_new_flag_of_the_host(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu = host(torch.tensor([False]))
        meta.num_active_loras_cpu[0] = 1


def no_mapping(adapter_manager, input_batch):
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu[0] = False
        meta.num_active_loras_cpu[0] = 1


def room_for_all(adapter_manager, input_batch):
    map_to(0, adapter_manager, input_batch)
    for meta in metas(adapter_manager):
        meta.no_lora_flag_cpu[0] = False
        meta.num_active_loras_cpu[0] = len(adapter_manager.lora_index_to_id) + 1


FEW = "room for few"
RIGHT = [
    (CASE.variant("forced_launch").fn, {FEW}),
    (tokens_only, {"prompt flag left up", FEW}),
    (a_new_flag_of_the_host, {"flag rebound", FEW}),
    (no_mapping, {"nothing mapped", FEW}),
    (room_for_all, set()),
]


@few
@pytest.mark.parametrize(("fn", "verdict"), [(RIGHT[0][0], "wrong"), (room_for_all, "correct")])
def test_room_for_few_is_too_little_for_a_larger_batch_of_that_setting(fn, verdict):
    check = AT_ONE_SHAPE.check(fn, rung="emulated", **SMALL, specialize_active_lora=1)
    assert check.run.verdict == verdict, check


each_right = pytest.mark.parametrize(("fn", "remarks"), RIGHT, ids=[fn.__name__ for fn, _ in RIGHT])


@few
@each_right
def test_a_right_repair_is_solved_and_what_it_leans_on_is_remarked(fn, remarks, backend):
    check = AT_ONE_SHAPE.check(fn, rung=backend, **SMALL)
    assert check.solved, check
    assert {remark.name for remark in check.remarks} == remarks


@pytest.mark.slow  # test_check has the solution
@each_right
def test_every_right_repair_is_solved_at_harder_shapes_too(fn, remarks, backend):
    check = checked(fn, backend)
    assert check.solved and {remark.name for remark in check.remarks} == remarks, check


def test_the_stub_is_not_solved_yet(backend):
    check = CASE.check(stub, rung=backend, **SMALL)
    assert repr(check).startswith("not solved yet: stub is still the stub\nrung: ")
    assert check.explanation is None
