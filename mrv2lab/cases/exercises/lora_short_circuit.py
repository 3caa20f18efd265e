"""The exercise of `lora_short_circuit`: get the LoRA kernels into the graph."""

import torch

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.dummy_lora import COUNT, FLAG, PROMPTS, TOKENS, Dummy, DummyLoRAWatch


def at_capture(evidence: Evidence) -> Dummy | None:
    """The dummy run's batch: what it has left is what capture finds, for capture programs nothing."""
    batch: Dummy | None = evidence.watch.last
    return batch


def flag_was_up(evidence: Evidence) -> Dummy | None:
    """The dummy run's batch, if it left the host's flag up and the graph holds no LoRA kernel."""
    batch = at_capture(evidence)
    if batch is None or not batch.flags[TOKENS] or not evidence.run.kernels:
        return None
    return None if any(name.startswith("_lora_") for name in evidence.run.kernels) else batch


def adapter_in_no_slot(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    if batch is None or not batch.strangers or not evidence.run.raised:
        return None
    return f"The mapping names adapters {batch.strangers}, and the slots hold {batch.slots}."


def mapping_left_to_smaller_batches(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    if batch is None or batch.mapping is None or not any(batch.mapping.index_mapping):
        return None
    outside = (evidence.run.message or "").startswith("IllegalAccess")
    entries = len(batch.mapping.index_mapping)
    return (
        f"The mapping has {entries} entries, and it was left to captures of fewer tokens."
        if outside
        else None
    )


def flag_is_device_memory(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    if batch is None or batch.rebound.get(TOKENS) is not False:
        return None
    refused = evidence.trouble is not None and evidence.trouble.error == "HostSyncError"
    return f"{TOKENS}.{FLAG} is another tensor now, and capture refused to read it." if refused else None


def flag_is_no_tensor(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    if batch is None or batch.rebound.get(TOKENS, False) is not None:
        return None
    return f"{TOKENS}.{FLAG} is no tensor now."


def flag_set_again(evidence: Evidence) -> str | None:
    batch = flag_was_up(evidence)
    if batch is None or not batch.undone(f"{TOKENS}.{FLAG}"):
        return None
    return f"Your function wrote {TOKENS}.{FLAG}, then something it called wrote it again: True."


def flag_of_a_copy(evidence: Evidence) -> str | None:
    batch = flag_was_up(evidence)
    if batch is None or not batch.stray({torch.bool}):
        return None
    return (
        f"Your function wrote into a bool tensor that no metadata holds; {TOKENS}.{FLAG} was True at capture."
    )


def prompts_only(evidence: Evidence) -> str | None:
    batch = flag_was_up(evidence)
    if batch is None or batch.flags[PROMPTS]:
        return None
    return f"At capture {PROMPTS}.{FLAG} was False, and {TOKENS}.{FLAG} was True."


def adapter_that_nobody_uses(evidence: Evidence) -> str | None:
    batch = flag_was_up(evidence)
    loaded = evidence.watch.batches[0].new_adapters if evidence.watch.batches else []
    if batch is None or not loaded:
        return None
    return f"Adapters {loaded} were put into slots; no token of the dummy batch was mapped to one."


def flag_up(evidence: Evidence) -> str | None:
    if flag_was_up(evidence) is None:
        return None
    return f"At capture {TOKENS}.{FLAG} was True, and the graph holds no LoRA kernel."


def nothing_written(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    if batch is None or batch.mapping is not None or any(write.by_reader for write in batch.writes):
        return None
    seen = count_left_at_zero(evidence)
    return f"Your function programmed no mapping and wrote nothing. {seen}" if seen else None


def count_left_at_zero(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    if batch is None or batch.flags[TOKENS] or batch.counts.get(TOKENS) or not evidence.run.kernels:
        return None
    if any(name.startswith("_lora_") for name in evidence.run.kernels):
        return None
    return f"At capture {TOKENS}.{FLAG} was False and {COUNT} was 0; the graph holds no LoRA kernel."


def prompt_flag_left_up(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    return f"{PROMPTS}.{FLAG} was True at capture." if batch and batch.flags[PROMPTS] else None


def nothing_mapped(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    return "No mapping was programmed for the dummy batch." if batch and batch.mapping is None else None


def flag_rebound(evidence: Evidence) -> str | None:
    batch = at_capture(evidence)
    return f"{TOKENS}.{FLAG} is another tensor now." if batch and TOKENS in batch.rebound else None


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="forced_launch",
    watch=DummyLoRAWatch,
    harder=({"batch_size": 8, "num_steps": 9}, {"batch_size": 1, "specialize_active_lora": 1}),
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
