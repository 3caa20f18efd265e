"""The exercise of `lora_short_circuit`: get the LoRA kernels into the graph."""

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise, Observed
from mrv2lab.cases.exercises.dummy_lora import (
    COUNT,
    FLAG,
    PROMPTS,
    TOKENS,
    Dummy,
    DummyLoRAWatch,
    adapter_in_no_slot,
)

THE_FLAG = f"{TOKENS}.{FLAG}"


def mistakes(evidence: Evidence) -> Observed:
    # What the dummy run's batch has left is what capture finds, for capture programs nothing.
    batch: Dummy | None = evidence.watch.last
    if not batch:
        return
    run, trouble, mapping = evidence.run, evidence.trouble, batch.mapping
    yield from adapter_in_no_slot(evidence)
    if mapping and any(mapping.index_mapping) and (run.message or "").startswith("IllegalAccess"):
        entries = f"The mapping has {len(mapping.index_mapping)} entries"
        seen = f"{entries}, and it was left to captures of fewer tokens."
        yield "mapping_left_to_smaller_batches", seen
    if batch.rebound.get(TOKENS) is False and trouble and trouble.error == "HostSyncError":
        yield "flag_is_device_memory", f"{THE_FLAG} is another tensor now, and capture refused to read it."
    if batch.rebound.get(TOKENS, False) is None:
        yield "flag_is_no_tensor", f"{THE_FLAG} is no tensor now."
    if run.kernels and not any(kernel.startswith("_lora_") for kernel in run.kernels):
        yield from flag_up(evidence, batch) if batch.flags[TOKENS] else count_left_at_zero(batch)


def flag_up(evidence: Evidence, batch: Dummy) -> Observed:
    if batch.undone(THE_FLAG):
        seen = f"Your function wrote {THE_FLAG}, then something it called wrote it again: True."
        yield "flag_set_again", seen
    if batch.stray({torch.bool}):
        wrote = "Your function wrote into a bool tensor that no metadata holds"
        yield "flag_of_a_copy", f"{wrote}; {THE_FLAG} was True at capture."
    if not batch.flags[PROMPTS]:
        yield "prompts_only", f"At capture {PROMPTS}.{FLAG} was False, and {THE_FLAG} was True."
    if loaded := evidence.watch.batches[0].new_adapters:
        slots = f"Adapters {loaded} were put into slots"
        yield "adapter_that_nobody_uses", f"{slots}; no token of the dummy batch was mapped to one."
    yield "flag_up", f"At capture {THE_FLAG} was True, and the graph holds no LoRA kernel."


def count_left_at_zero(batch: Dummy) -> Observed:
    if batch.counts.get(TOKENS):
        return
    seen = f"At capture {THE_FLAG} was False and {COUNT} was 0; the graph holds no LoRA kernel."
    if not batch.mapping and not any(write.by_reader for write in batch.writes):
        yield "nothing_written", f"Your function programmed no mapping and wrote nothing. {seen}"
    yield "count_left_at_zero", seen


def remarks(evidence: Evidence) -> Observed:
    batch: Dummy | None = evidence.watch.last
    if not batch:
        return
    if batch.flags[PROMPTS]:
        yield "prompt_flag_left_up", f"{PROMPTS}.{FLAG} was True at capture."
    if not batch.mapping:
        yield "nothing_mapped", "No mapping was programmed for the dummy batch."
    if TOKENS in batch.rebound:
        yield "flag_rebound", f"{THE_FLAG} is another tensor now."
    if (count := batch.counts[TOKENS]) <= len(batch.slots):
        yield "room_for_few", f"{COUNT} was {count} at capture; a batch may have {len(batch.slots) + 1} ids."


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="forced_launch",
    watch=DummyLoRAWatch,
    shape={"batch_size": 8, "num_steps": 2, "num_layers": 1, "to_the_limits": 1},
    # One request: with more of them upstream's repair is wrong as well, which a remark says.
    harder=({"batch_size": 1, "num_steps": 4, "num_layers": 2, "specialize_active_lora": 1},),
    mistakes=mistakes,
    remarks=remarks,
)
