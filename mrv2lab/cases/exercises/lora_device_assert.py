"""The exercise of `lora_device_assert`: write what the look-up of a dummy batch reads."""

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.dummy_lora import FLAG, TOKENS, DummyLoRAWatch
from mrv2lab.results import Run


def mistakes(run: Run, watch: DummyLoRAWatch) -> Observed:
    if not (batch := watch.last) or not run.raised:
        return
    yield from watch.adapter_in_no_slot(run)
    tokens = len(batch.mapping.index_mapping) if batch.mapping else 0
    prompts = len(batch.mapping.prompt_mapping) if batch.mapping else 0
    if (longest := max(tokens, prompts)) > batch.max_num_tokens:
        yield "too_many_entries", {"entries": longest, "room": batch.max_num_tokens}
    looked_up = "vocab_parallel_embedding" in (run.where or "")
    if not looked_up or batch.rows_in_table >= batch.num_tokens:
        return
    said: dict[str, object] = {"batch": batch, "tokens": tokens, "prompts": prompts}
    if any(write.by_reader and write.what == f"{TOKENS}.{FLAG}" for write in batch.writes):
        yield "kernels_switched_off", said
    if batch.stray({torch.int64, torch.int32}):
        yield "zeroed_a_copy", said
    if batch.mapping and not tokens:
        yield "prompts_only", said
    if 0 < tokens < batch.num_tokens:
        yield "one_entry_a_request", said
    if not batch.mapping and batch.rows_in_table:
        yield "rows_left_out", said
    elif not batch.mapping:
        yield "nothing_written", said


def remarks(run: Run, watch: DummyLoRAWatch) -> Observed:
    batch = watch.last
    if batch and not batch.mapping:
        yield "only_the_indices", {}
    elif batch and batch.mapping and (entries := len(batch.mapping.prompt_mapping)) < batch.num_reqs:
        yield "prompts_left_out", {"entries": entries, "requests": batch.num_reqs}


EXERCISE = Exercise(**prose.beside(__file__), watch=DummyLoRAWatch, mistakes=mistakes, remarks=remarks)
