"""The exercise of `lora_device_assert`: write what the look-up of a dummy batch reads."""

from collections.abc import Iterator

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.dummy_lora import (
    FLAG,
    INDICES,
    TOKENS,
    Dummy,
    DummyLoRAWatch,
    adapter_in_no_slot,
)


def batch_that_crashed(evidence: Evidence) -> Dummy | None:
    """The dummy batch, if an exception ended the run."""
    batch: Dummy | None = evidence.watch.last
    return batch if evidence.run.raised else None


def missed(evidence: Evidence) -> Dummy | None:
    """The dummy batch, if the look-up was reached and a row of its indices lies outside the table."""
    batch = batch_that_crashed(evidence)
    reached = evidence.run.where is not None and "vocab_parallel_embedding" in evidence.run.where
    return batch if batch and reached and batch.rows_in_table < batch.num_tokens else None


def rows(batch: Dummy) -> str:
    return f"{batch.rows_in_table} of {batch.num_tokens} rows of {INDICES} point into the table."


def too_many_entries(evidence: Evidence) -> Iterator[str]:
    batch = batch_that_crashed(evidence)
    if batch and batch.mapping:
        longest = max(len(batch.mapping.index_mapping), len(batch.mapping.prompt_mapping))
        if longest > batch.max_num_tokens:
            yield f"The mapping has {longest} entries, and there is room for {batch.max_num_tokens}."


def kernels_switched_off(evidence: Evidence) -> Iterator[str]:
    batch = missed(evidence)
    if batch and batch.written_by_reader(f"{TOKENS}.{FLAG}"):
        yield f"{TOKENS}.{FLAG} was {batch.flags[TOKENS]} by your hand, and {rows(batch)}"


def zeroed_a_copy(evidence: Evidence) -> Iterator[str]:
    batch = missed(evidence)
    if batch and batch.stray({torch.int64, torch.int32}):
        yield f"Your function wrote into a tensor that no metadata holds, and {rows(batch)}"


def prompts_only(evidence: Evidence) -> Iterator[str]:
    batch = missed(evidence)
    if batch and batch.mapping and not batch.mapping.index_mapping:
        prompts = len(batch.mapping.prompt_mapping)
        yield f"The mapping has no entry for tokens and {prompts} for prompts; {rows(batch)}"


def one_entry_a_request(evidence: Evidence) -> Iterator[str]:
    batch = missed(evidence)
    entries = len(batch.mapping.index_mapping) if batch and batch.mapping else 0
    if batch and 0 < entries < batch.num_tokens:
        yield f"The mapping has {entries} entries for {batch.num_tokens} tokens; {rows(batch)}"


def rows_left_out(evidence: Evidence) -> Iterator[str]:
    batch = missed(evidence)
    if batch and batch.rows_in_table and not batch.mapping:
        yield rows(batch)


def nothing_written(evidence: Evidence) -> Iterator[str]:
    batch = missed(evidence)
    if batch and not batch.rows_in_table and not batch.mapping:
        yield f"No mapping was programmed, and {rows(batch)}"


def prompts_left_out(evidence: Evidence) -> Iterator[str]:
    batch = evidence.watch.last
    if batch and batch.mapping and len(batch.mapping.prompt_mapping) < batch.num_reqs:
        entries = len(batch.mapping.prompt_mapping)
        yield f"The prompt mapping has {entries} entries for {batch.num_reqs} requests."


def only_the_indices(evidence: Evidence) -> Iterator[str]:
    batch = evidence.watch.last
    if batch and not batch.mapping:
        yield "No mapping was programmed; only the memory was written."


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="zero_mapping",
    watch=DummyLoRAWatch,
    mistakes=(
        adapter_in_no_slot,
        too_many_entries,
        kernels_switched_off,
        zeroed_a_copy,
        prompts_only,
        one_entry_a_request,
        rows_left_out,
        nothing_written,
    ),
    remarks=(
        prompts_left_out,
        only_the_indices,
    ),
)
