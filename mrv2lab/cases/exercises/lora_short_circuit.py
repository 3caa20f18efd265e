"""The exercise of `lora_short_circuit`: get the LoRA kernels into the graph."""

import torch

from mrv2lab.cases.exercises.base import Evidence, Exercise, Mistake
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


_SAME_AS_THE_BUG = "The host read True and left lora_shrink and lora_expand before they launched anything."

EXERCISE = Exercise(
    solution="forced_launch",
    watch=DummyLoRAWatch,
    harder=(
        {"batch_size": 8, "num_steps": 9, "to_the_limits": 1},
        {"batch_size": 1, "specialize_active_lora": 1},
    ),
    hints=(
        "Who decides whether a LoRA kernel is launched, what does it read at the moment of capture, and who "
        "wrote that last?",
        "set_adapter_mapping writes two kinds of values: those that a replay reads on the device, and "
        "those that "
        "only Python reads. Keep the first as they are. Which of the second say that there is nothing to do?",
        "For each wrapper in adapter_manager.punica_wrapper_mapping.values(), and both of its metas "
        "(token_mapping_meta, prompt_mapping_meta): after the mapping, write into no_lora_flag_cpu and into "
        "num_active_loras_cpu what a batch with one adapter would have there.",
    ),
    mistakes=(
        Mistake(
            "adapter in no slot",
            adapter_in_no_slot,
            "set_adapter_mapping programs adapters that are loaded. set_active_adapters(ids, mapping) "
            "loads them first.",
        ),
        Mistake(
            "mapping left to smaller batches",
            mapping_left_to_smaller_batches,
            "Nobody programs another mapping before a capture, and the kernels reach for the rows that this "
            "one names. On a GPU they would read and write memory of others, mostly unnoticed. Adapters in a "
            "capture need a mapping for each size: #35536.",
        ),
        Mistake(
            "flag is device memory",
            flag_is_device_memory,
            "On the emulator a new CPU tensor plays device memory, and a capture may not wait for that. On "
            "a GPU it "
            "would pass. Write into the tensor that is there: flag[0] = False.",
        ),
        Mistake(
            "flag is no tensor",
            flag_is_no_tensor,
            "The kernels' launchers ask a tensor of one element. Write into the one that is there: flag[0] = "
            "False.",
        ),
        Mistake(
            "flag set again",
            flag_set_again,
            f"Programming a mapping of zeros sets the flag. Clear it after the mapping. {_SAME_AS_THE_BUG}",
        ),
        Mistake(
            "flag of a copy",
            flag_of_a_copy,
            f"The host reads the tensor that the metadata holds; a copy is nobody's. {_SAME_AS_THE_BUG}",
        ),
        Mistake(
            "prompts only",
            prompts_only,
            "The projections inside the model read the token mapping. The prompt mapping serves the "
            "logits, which "
            f"are computed outside the graph. {_SAME_AS_THE_BUG}",
        ),
        Mistake(
            "adapter that nobody uses",
            adapter_that_nobody_uses,
            f"The flag follows the mapping, not the slots. {_SAME_AS_THE_BUG}",
        ),
        Mistake("flag up", flag_up, _SAME_AS_THE_BUG),
        Mistake(
            "nothing written",
            nothing_written,
            "What the metadata held when it was allocated decided. With specialize_active_lora the third "
            "number of the kernels' grid is the count, and a grid of 0 launches nothing.",
        ),
        Mistake(
            "count left at zero",
            count_left_at_zero,
            "With specialize_active_lora the third number of the kernels' grid is the count. A grid of 0 "
            "launches "
            "nothing, so nothing was captured. The flag alone is enough only while the grid has its "
            "default size.",
        ),
    ),
    remarks=(
        Mistake(
            "prompt flag left up",
            prompt_flag_left_up,
            "Nothing that was captured reads it: this runner computes logits outside the graph. Upstream "
            "clears both.",
        ),
        Mistake(
            "nothing mapped",
            nothing_mapped,
            "The kernels were captured over metadata that nobody wrote. They leave early because the token "
            "counts "
            "were zeroed when they were allocated; lora_device_assert tells what else reads it.",
        ),
        Mistake("flag rebound", flag_rebound, "It works while everybody asks the metadata for it anew."),
    ),
)
