"""Which token belongs to which adapter: what one batch leaves behind must not be read as the next one's."""

import torch

from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta

CPU = torch.device("cpu")


def prepared(*batches):
    meta = LoRAKernelMeta.make(3, 32, CPU)
    for batch in batches:
        meta.prepare_tensors(torch.tensor(batch, dtype=torch.int32))
    return meta


def test_tokens_are_sorted_and_counted_by_adapter():
    meta = prepared([2, -1, 0, 2, 0, 2])
    assert meta.active_lora_ids.tolist() == [-1, 0, 2, -1]
    assert meta.num_tokens_per_lora.tolist() == [1, 2, 3, 0]
    assert meta.lora_token_start_loc.tolist() == [0, 1, 3, 6, 0]
    assert meta.token_indices_sorted_by_lora_ids[:6].tolist() == [1, 2, 4, 0, 3, 5]
    assert (meta.num_active_loras_cpu.item(), meta.no_lora_flag_cpu.item()) == (3, False)


def test_nothing_is_left_of_the_batch_before():
    meta = prepared([2, -1, 0, 2, 0, 2], [1, 1])
    assert meta.active_lora_ids.tolist() == [1, -1, -1, -1]
    assert meta.num_tokens_per_lora.tolist() == [2, 0, 0, 0]
    assert meta.lora_token_start_loc.tolist() == [0, 2, 0, 0, 0]
    assert (meta.num_active_loras_cpu.item(), meta.no_lora_flag_cpu.item()) == (1, False)


def test_a_batch_without_adapters_says_so_to_the_host_and_leaves_no_work_on_the_device():
    meta = prepared([2, 0], [-1, -1])
    assert meta.active_lora_ids.tolist() == [-1] * 4 and meta.num_tokens_per_lora.tolist() == [0] * 4
    assert meta.lora_token_start_loc.tolist() == [0] * 5
    assert (meta.num_active_loras_cpu.item(), meta.no_lora_flag_cpu.item()) == (0, True)


def test_a_specialised_grid_is_given_the_number_of_adapters_and_any_other_the_most_there_can_be():
    meta = prepared([2, 0])
    *tensors, _, special = meta.meta_args(2, specialize_active_lora=True)
    assert (special.item(), meta.meta_args(2, specialize_active_lora=False)[-1].item()) == (2, 4)
    assert tensors[0].tolist() == [1, 0]
