"""The exercise of `lora_device_assert`: write what the look-up of a dummy batch reads."""

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.dummy_lora import FLAG, INDICES, TOKENS, Dummy, DummyLoRAWatch


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


def adapter_in_no_slot(evidence: Evidence) -> str | None:
    batch = batch_that_crashed(evidence)
    if batch is None or not batch.strangers:
        return None
    return f"The mapping names adapters {batch.strangers}, and the slots hold {batch.slots}."


def too_many_entries(evidence: Evidence) -> str | None:
    batch = batch_that_crashed(evidence)
    if batch is None or batch.mapping is None:
        return None
    longest = max(len(batch.mapping.index_mapping), len(batch.mapping.prompt_mapping))
    if longest <= batch.max_num_tokens:
        return None
    return f"The mapping has {longest} entries, and there is room for {batch.max_num_tokens}."


def kernels_switched_off(evidence: Evidence) -> str | None:
    batch = missed(evidence)
    if batch is None or not batch.written_by_reader(f"{TOKENS}.{FLAG}"):
        return None
    return f"{TOKENS}.{FLAG} was {batch.flags[TOKENS]} by your hand, and {rows(batch)}"


def zeroed_a_copy(evidence: Evidence) -> str | None:
    batch = missed(evidence)
    if batch is None or not batch.stray({torch.int64, torch.int32}):
        return None
    return f"Your function wrote into a tensor that no metadata holds, and {rows(batch)}"


def prompts_only(evidence: Evidence) -> str | None:
    batch = missed(evidence)
    if batch is None or batch.mapping is None or batch.mapping.index_mapping:
        return None
    return (
        f"The mapping has no entry for tokens and {len(batch.mapping.prompt_mapping)} for prompts; "
        f"{rows(batch)}"
    )


def one_entry_a_request(evidence: Evidence) -> str | None:
    batch = missed(evidence)
    if batch is None or batch.mapping is None:
        return None
    entries = len(batch.mapping.index_mapping)
    if not 0 < entries < batch.num_tokens:
        return None
    return f"The mapping has {entries} entries for {batch.num_tokens} tokens; {rows(batch)}"


def rows_left_out(evidence: Evidence) -> str | None:
    batch = missed(evidence)
    return rows(batch) if batch and batch.rows_in_table > 0 and batch.mapping is None else None


def nothing_written(evidence: Evidence) -> str | None:
    batch = missed(evidence)
    if batch is None or batch.rows_in_table or batch.mapping is not None:
        return None
    return f"No mapping was programmed, and {rows(batch)}"


def prompts_left_out(evidence: Evidence) -> str | None:
    batch: Dummy | None = evidence.watch.last
    if batch is None or batch.mapping is None or len(batch.mapping.prompt_mapping) >= batch.num_reqs:
        return None
    return (
        f"The prompt mapping has {len(batch.mapping.prompt_mapping)} entries for {batch.num_reqs} requests."
    )


def only_the_indices(evidence: Evidence) -> str | None:
    batch: Dummy | None = evidence.watch.last
    return "No mapping was programmed; only the memory was written." if batch and not batch.mapping else None


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
