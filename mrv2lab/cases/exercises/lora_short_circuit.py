"""The exercise of `lora_short_circuit`: get the LoRA kernels into the graph."""

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.dummy_lora import FLAG, PROMPTS, TOKENS, Dummy, DummyLoRAWatch
from mrv2lab.results import Run


def mistakes(run: Run, watch: DummyLoRAWatch) -> Observed:
    # What the dummy run's batch has left is what capture finds, for capture programs nothing.
    if not (batch := watch.last):
        return
    trouble, mapping = watch.trouble, batch.mapping
    yield from watch.adapter_in_no_slot(run)
    if mapping and any(mapping.index_mapping) and (run.message or "").startswith("IllegalAccess"):
        yield "mapping_left_to_smaller_batches", {"entries": len(mapping.index_mapping)}
    if batch.rebound.get(TOKENS) is False and trouble and trouble.error == "HostSyncError":
        yield "flag_is_device_memory", {}
    if batch.rebound.get(TOKENS, False) is None:
        yield "flag_is_no_tensor", {}
    if run.kernels and not any(kernel.startswith("_lora_") for kernel in run.kernels):
        yield from flag_up(watch, batch) if batch.flags[TOKENS] else count_left_at_zero(batch)


def flag_up(watch: DummyLoRAWatch, batch: Dummy) -> Observed:
    if batch.undone(f"{TOKENS}.{FLAG}"):
        yield "flag_set_again", {}
    if batch.stray({torch.bool}):
        yield "flag_of_a_copy", {}
    if not batch.flags[PROMPTS]:
        yield "prompts_only", {}
    if loaded := watch.batches[0].new_adapters:
        yield "adapter_that_nobody_uses", {"loaded": loaded}
    yield "flag_up", {}


def count_left_at_zero(batch: Dummy) -> Observed:
    if batch.counts.get(TOKENS):
        return
    if not batch.mapping and not any(write.by_reader for write in batch.writes):
        yield "nothing_written", {}
    yield "count_left_at_zero", {}


def remarks(run: Run, watch: DummyLoRAWatch) -> Observed:
    if not (batch := watch.last):
        return
    if batch.flags[PROMPTS]:
        yield "prompt_flag_left_up", {}
    if not batch.mapping:
        yield "nothing_mapped", {}
    if TOKENS in batch.rebound:
        yield "flag_rebound", {}
    if (count := batch.counts[TOKENS]) <= len(batch.slots):
        yield "room_for_few", {"count": count, "most": len(batch.slots) + 1}


EXERCISE = Exercise(**prose.beside(__file__), watch=DummyLoRAWatch, mistakes=mistakes, remarks=remarks)
