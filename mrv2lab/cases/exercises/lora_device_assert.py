"""The exercise of `lora_device_assert`: write what the look-up of a dummy batch reads."""

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise, Observed
from mrv2lab.cases.exercises.dummy_lora import (
    FLAG,
    INDICES,
    TOKENS,
    Dummy,
    DummyLoRAWatch,
    adapter_in_no_slot,
)


def mistakes(evidence: Evidence) -> Observed:
    batch: Dummy | None = evidence.watch.last
    if not batch or not evidence.run.raised:
        return
    yield from adapter_in_no_slot(evidence)
    tokens = len(batch.mapping.index_mapping) if batch.mapping else 0
    prompts = len(batch.mapping.prompt_mapping) if batch.mapping else 0
    if (longest := max(tokens, prompts)) > batch.max_num_tokens:
        room = f"there is room for {batch.max_num_tokens}"
        yield "too_many_entries", f"The mapping has {longest} entries, and {room}."
    looked_up = "vocab_parallel_embedding" in (evidence.run.where or "")
    if not looked_up or batch.rows_in_table >= batch.num_tokens:
        return
    rows = f"{batch.rows_in_table} of {batch.num_tokens} rows of {INDICES} point into the table."
    if batch.written_by_reader(f"{TOKENS}.{FLAG}"):
        flag = f"{TOKENS}.{FLAG} was {batch.flags[TOKENS]} by your hand"
        yield "kernels_switched_off", f"{flag}, and {rows}"
    if batch.stray({torch.int64, torch.int32}):
        yield "zeroed_a_copy", f"Your function wrote into a tensor that no metadata holds, and {rows}"
    if batch.mapping and not tokens:
        yield "prompts_only", f"The mapping has no entry for tokens and {prompts} for prompts; {rows}"
    if 0 < tokens < batch.num_tokens:
        entries = f"The mapping has {tokens} entries for {batch.num_tokens} tokens"
        yield "one_entry_a_request", f"{entries}; {rows}"
    if not batch.mapping and batch.rows_in_table:
        yield "rows_left_out", rows
    elif not batch.mapping:
        yield "nothing_written", f"No mapping was programmed, and {rows}"


def remarks(evidence: Evidence) -> Observed:
    batch: Dummy | None = evidence.watch.last
    if batch and not batch.mapping:
        yield "only_the_indices", "No mapping was programmed; only the memory was written."
    elif batch and batch.mapping and (entries := len(batch.mapping.prompt_mapping)) < batch.num_reqs:
        yield "prompts_left_out", f"The prompt mapping has {entries} entries for {batch.num_reqs} requests."


EXERCISE = Exercise(
    prose.beside(__file__), solution="zero_mapping", watch=DummyLoRAWatch, mistakes=mistakes, remarks=remarks
)
