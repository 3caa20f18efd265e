"""The exercise of `lora_frozen_grid`: a dummy batch with as many ids as any batch of its key can have."""

from mrv2lab.cases.exercises.base import Evidence, Exercise, Mistake
from mrv2lab.cases.exercises.dummy_lora import FLAG, TOKENS, Dummy, DummyLoRAWatch
from mrv2lab.errors import counted


def captured(evidence: Evidence) -> list[Dummy]:
    """The dummy batches of graphs for batches with adapters, in the order of capture."""
    return [batch for batch in evidence.watch.batches if batch.key]


def ids_served(batch: Dummy) -> int:
    """The most ids that a batch of this size and key can have: its adapters, and none."""
    return min(batch.num_reqs, min(batch.key or 0, len(batch.slots)) + 1)


def short(evidence: Evidence) -> list[Dummy]:
    """Batches whose LoRA kernels were captured with a grid that is too small for some batch of their key."""
    return [b for b in captured(evidence) if not b.flags[TOKENS] and b.counts[TOKENS] < ids_served(b)]


def room(batch: Dummy) -> str:
    return (
        f"The graph of key {batch.key} for {counted(batch.num_reqs, 'request')} has room for "
        f"{counted(batch.counts[TOKENS], 'id')}; such a batch may have {ids_served(batch)}."
    )


def adapter_in_no_slot(evidence: Evidence) -> str | None:
    batch = evidence.watch.last
    if batch is None or not batch.strangers or not evidence.run.raised:
        return None
    return f"The mapping names adapters {batch.strangers}, and the slots hold {batch.slots}."


def too_many_entries(evidence: Evidence) -> str | None:
    batch = evidence.watch.last
    outside = (evidence.run.message or "").startswith("IllegalAccess")
    if batch is None or batch.mapping is None or not outside:
        return None
    entries = len(batch.mapping.index_mapping)
    return f"The mapping has {entries} entries, the batch {batch.num_tokens} tokens."


def no_kernels(evidence: Evidence) -> str | None:
    up = [batch for batch in captured(evidence) if batch.flags[TOKENS]]
    if not up:
        return None
    return (
        f"Where key {up[0].key} meets size {up[0].num_reqs} no token had an adapter, so {TOKENS}.{FLAG} was "
        "True and no LoRA kernel was captured."
    )


def only_the_last_key(evidence: Evidence) -> str | None:
    too_small = short(evidence)
    last = max((batch.key or 0 for batch in captured(evidence)), default=0)
    with_nobody = {b.key for b in captured(evidence) if b.mapping and 0 in b.mapping.index_mapping}
    return room(too_small[0]) if too_small and with_nobody == {last} else None


def too_small(evidence: Evidence) -> str | None:
    found = short(evidence)
    return room(found[0]) if found and any(batch.mapping for batch in captured(evidence)) else None


def nothing_programmed(evidence: Evidence) -> str | None:
    batches = captured(evidence)
    if not batches or any(batch.mapping for batch in batches):
        return None
    return (
        f"No mapping was programmed before a capture. {room(short(evidence)[0])}" if short(evidence) else None
    )


def same_for_every_key(evidence: Evidence) -> str | None:
    spare = [b for b in captured(evidence) if b.counts[TOKENS] > max(ids_served(b), 2 * (b.key or 0))]
    return room(spare[0]) if spare else None


EXERCISE = Exercise(
    solution="keyed_full",
    whose="ours",
    watch=DummyLoRAWatch,
    harder=({"batch_size": 2, "max_loras": 1}, {"batch_size": 8, "max_loras": 3, "every_graph": 1}),
    hints=(
        "The key of a graph is a number of adapters, and its grid is another number. Which of the two counts "
        "the requests without an adapter?",
        "A batch with two adapters and a request without has key 2, and three ids: -1, 0 and 1. The grid of "
        "its graph is what the dummy batch had. What must the dummy batch of key 2 hold, and what can one of "
        "a single request hold?",
        "Give the requests of the dummy batch the adapters 1 to num_active_loras (at most "
        "len(adapter_manager.lora_index_to_id)) and 0 in turn, adapters first. Entries for tokens: "
        "input_batch.num_scheduled_tokens says how many each request has. Then "
        "adapter_manager.set_active_adapters(ids, LoRAMapping(tokens, requests)).",
    ),
    mistakes=(
        Mistake(
            "adapter in no slot",
            adapter_in_no_slot,
            "set_adapter_mapping programs adapters that are loaded. set_active_adapters(ids, mapping) loads "
            "them first.",
        ),
        Mistake(
            "too many entries",
            too_many_entries,
            "A mapping has one entry for each token of this batch: its indices address rows of the output.",
        ),
        Mistake(
            "no kernels",
            no_kernels,
            "The host leaves lora_shrink and lora_expand before they launch anything, and the graph of a "
            "batch with adapters holds none. Where there is room for one request only, it must be one with "
            "an adapter.",
        ),
        Mistake(
            "only the last key",
            only_the_last_key,
            "A request without an adapter is not counted by the key, so such a batch never gets to the last "
            "one. Each key needs its request without.",
        ),
        Mistake(
            "too small",
            too_small,
            "Ids are sorted and -1 is the first, so the last adapter of a batch with a request without finds "
            "no block. The key counts adapters, the grid counts ids.",
        ),
        Mistake(
            "nothing programmed",
            nothing_programmed,
            "What the last dummy run left was captured for every key. That is 0.23.",
        ),
    ),
    remarks=(
        Mistake(
            "the same for every key",
            same_for_every_key,
            "Right, and as large as the default setting's grid: graphs for each number of adapters then save "
            "nothing.",
        ),
    ),
)
