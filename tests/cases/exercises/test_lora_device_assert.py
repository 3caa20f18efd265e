"""Repairs that people would try on #43139, and what each is told. Checked on the emulator."""

import pytest
import torch

from mrv2lab.cases import get
from mrv2lab.runner import LoRAMapping

CASE = get("lora_device_assert")
SMALL = {"batch_size": 1, "rank": 4}


def wrappers(adapter_manager):
    return adapter_manager.punica_wrapper_mapping.values()


def stub(adapter_manager, input_batch):
    raise NotImplementedError("write the repair")


def nothing(adapter_manager, input_batch):
    pass


def one_entry_a_request(adapter_manager, input_batch):
    nobody = (0,) * input_batch.num_reqs
    adapter_manager.set_adapter_mapping(LoRAMapping(nobody, nobody))


def only_prompts(adapter_manager, input_batch):
    adapter_manager.set_adapter_mapping(LoRAMapping((), (0,) * input_batch.num_reqs))


def too_many(adapter_manager, input_batch):
    adapter_manager.set_adapter_mapping(LoRAMapping((0,) * 1000, (0,)))


def zeroed_copy(adapter_manager, input_batch):
    for wrapper in wrappers(adapter_manager):
        wrapper._embeddings_indices.clone().zero_()


def kernels_off(adapter_manager, input_batch):
    for wrapper in wrappers(adapter_manager):
        wrapper.token_mapping_meta.no_lora_flag_cpu[0] = True


def some_rows(adapter_manager, input_batch):
    for wrapper in wrappers(adapter_manager):
        wrapper._embeddings_indices[: input_batch.num_reqs] = 0


def an_adapter_in_no_slot(adapter_manager, input_batch):
    one = (1,) * input_batch.num_tokens_after_padding
    adapter_manager.set_adapter_mapping(LoRAMapping(one, (1,) * input_batch.num_reqs))


WRONG = [
    (nothing, "nothing written"),
    (one_entry_a_request, "one entry a request"),
    (only_prompts, "prompts only"),
    (too_many, "too many entries"),
    (zeroed_copy, "zeroed a copy"),
    (kernels_off, "kernels switched off"),
    (some_rows, "rows left out"),
    (an_adapter_in_no_slot, "adapter in no slot"),
]


@pytest.mark.parametrize(("fn", "name"), WRONG, ids=[fn.__name__ for fn, _ in WRONG])
def test_a_wrong_repair_is_recognised_by_what_it_did(fn, name, backend):
    check = CASE.check(fn, rung=backend, **SMALL)
    looked_up = name not in ("too many entries", "adapter in no slot")  # Python refuses those before
    assert check.run.verdict == ("crash" if looked_up else "failed")
    assert (check.status, check.run.rung) == ("not solved yet", "emulated")
    assert check.explanation is not None and check.explanation.name == name


def test_what_was_seen_is_said_with_its_numbers():
    check = CASE.check(one_entry_a_request, **SMALL)
    assert check.explanation.seen == (
        "The mapping has 8 entries for 64 tokens; 8 of 64 rows of _embeddings_indices point into the table."
    )
    assert "IndexError: index out of range in self" in repr(check)


def slips_behind_the_mapping(adapter_manager, input_batch):
    CASE.variant("zero_mapping").fn(adapter_manager, input_batch)
    adapter_manager.no_such_method()


def test_a_mapping_that_fills_all_the_room_there_is_has_not_too_many_entries():
    check = CASE.check(slips_behind_the_mapping, **SMALL)
    assert check.run.verdict == "failed" and check.explanation is None


# ---- what is right ----


def tokens_only(adapter_manager, input_batch):
    adapter_manager.set_adapter_mapping(LoRAMapping((0,) * input_batch.num_tokens_after_padding, ()))


def zeroed(adapter_manager, input_batch):
    for wrapper in wrappers(adapter_manager):
        wrapper._embeddings_indices.zero_()


def another_tensor(adapter_manager, input_batch):
    for wrapper in wrappers(adapter_manager):
        wrapper._embeddings_indices = torch.zeros_like(wrapper._embeddings_indices)


RIGHT = [
    (CASE.variant("zero_mapping").fn, set()),
    (CASE.variant("dummy_adapters").fn, set()),
    (tokens_only, {"prompts left out"}),
    (zeroed, {"only the indices"}),
    (another_tensor, {"only the indices"}),
]


@pytest.mark.parametrize(("fn", "remarks"), RIGHT, ids=[fn.__name__ for fn, _ in RIGHT])
def test_a_right_repair_is_solved_and_what_it_leans_on_is_remarked(fn, remarks, backend):
    check = CASE.check(fn, rung=backend, **SMALL)
    assert check.solved, check
    assert {remark.name for remark in check.remarks} == remarks


def test_the_stub_is_not_solved_yet(backend):
    check = CASE.check(stub, rung=backend, **SMALL)
    assert repr(check).startswith("not solved yet: stub is still the stub\nrung: ")
    assert check.explanation is None
