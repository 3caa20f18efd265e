"""The exercise of `lora_short_circuit`: get the LoRA kernels into the graph."""

from collections.abc import Iterator

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.dummy_lora import (
    COUNT,
    FLAG,
    PROMPTS,
    TOKENS,
    Dummy,
    DummyLoRAWatch,
    adapter_in_no_slot,
)


def at_capture(evidence: Evidence) -> Dummy | None:
    """The dummy run's batch: what it has left is what capture finds, for capture programs nothing."""
    batch: Dummy | None = evidence.watch.last
    return batch


def without_kernels(evidence: Evidence) -> Dummy | None:
    """The dummy run's batch, if there are graphs and they hold no LoRA kernel."""
    kernels = evidence.run.kernels
    return at_capture(evidence) if kernels and not any(k.startswith("_lora_") for k in kernels) else None


def flag_was_up(evidence: Evidence) -> Dummy | None:
    """The same, if it left the host's flag up."""
    batch = without_kernels(evidence)
    return batch if batch and batch.flags[TOKENS] else None


def mapping_left_to_smaller_batches(evidence: Evidence) -> Iterator[str]:
    batch, outside = at_capture(evidence), (evidence.run.message or "").startswith("IllegalAccess")
    if batch and batch.mapping and any(batch.mapping.index_mapping) and outside:
        entries = len(batch.mapping.index_mapping)
        yield f"The mapping has {entries} entries, and it was left to captures of fewer tokens."


def flag_is_device_memory(evidence: Evidence) -> Iterator[str]:
    batch, trouble = at_capture(evidence), evidence.trouble
    if batch and batch.rebound.get(TOKENS) is False and trouble and trouble.error == "HostSyncError":
        yield f"{TOKENS}.{FLAG} is another tensor now, and capture refused to read it."


def flag_is_no_tensor(evidence: Evidence) -> Iterator[str]:
    batch = at_capture(evidence)
    if batch and batch.rebound.get(TOKENS, False) is None:
        yield f"{TOKENS}.{FLAG} is no tensor now."


def flag_set_again(evidence: Evidence) -> Iterator[str]:
    batch = flag_was_up(evidence)
    if batch and batch.undone(f"{TOKENS}.{FLAG}"):
        yield f"Your function wrote {TOKENS}.{FLAG}, then something it called wrote it again: True."


def flag_of_a_copy(evidence: Evidence) -> Iterator[str]:
    batch, flag = flag_was_up(evidence), f"{TOKENS}.{FLAG}"
    if batch and batch.stray({torch.bool}):
        yield f"Your function wrote into a bool tensor that no metadata holds; {flag} was True at capture."


def prompts_only(evidence: Evidence) -> Iterator[str]:
    batch = flag_was_up(evidence)
    if batch and not batch.flags[PROMPTS]:
        yield f"At capture {PROMPTS}.{FLAG} was False, and {TOKENS}.{FLAG} was True."


def adapter_that_nobody_uses(evidence: Evidence) -> Iterator[str]:
    if flag_was_up(evidence) and (loaded := evidence.watch.batches[0].new_adapters):
        yield f"Adapters {loaded} were put into slots; no token of the dummy batch was mapped to one."


def flag_up(evidence: Evidence) -> Iterator[str]:
    if flag_was_up(evidence):
        yield f"At capture {TOKENS}.{FLAG} was True, and the graph holds no LoRA kernel."


def nothing_written(evidence: Evidence) -> Iterator[str]:
    batch = at_capture(evidence)
    if batch and not batch.mapping and not any(write.by_reader for write in batch.writes):
        for seen in count_left_at_zero(evidence):
            yield f"Your function programmed no mapping and wrote nothing. {seen}"


def count_left_at_zero(evidence: Evidence) -> Iterator[str]:
    batch = without_kernels(evidence)
    if batch and not batch.flags[TOKENS] and not batch.counts.get(TOKENS):
        yield f"At capture {TOKENS}.{FLAG} was False and {COUNT} was 0; the graph holds no LoRA kernel."


def prompt_flag_left_up(evidence: Evidence) -> Iterator[str]:
    batch = at_capture(evidence)
    if batch and batch.flags[PROMPTS]:
        yield f"{PROMPTS}.{FLAG} was True at capture."


def nothing_mapped(evidence: Evidence) -> Iterator[str]:
    batch = at_capture(evidence)
    if batch and not batch.mapping:
        yield "No mapping was programmed for the dummy batch."


def flag_rebound(evidence: Evidence) -> Iterator[str]:
    batch = at_capture(evidence)
    if batch and TOKENS in batch.rebound:
        yield f"{TOKENS}.{FLAG} is another tensor now."


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="forced_launch",
    watch=DummyLoRAWatch,
    harder=(
        {"batch_size": 8, "num_steps": 9, "num_layers": 1, "to_the_limits": 1},
        {"batch_size": 1, "num_steps": 9, "num_layers": 1, "specialize_active_lora": 1},
    ),
    mistakes=(
        adapter_in_no_slot,
        mapping_left_to_smaller_batches,
        flag_is_device_memory,
        flag_is_no_tensor,
        flag_set_again,
        flag_of_a_copy,
        prompts_only,
        adapter_that_nobody_uses,
        flag_up,
        nothing_written,
        count_left_at_zero,
    ),
    remarks=(
        prompt_flag_left_up,
        nothing_mapped,
        flag_rebound,
    ),
)
