"""The exercise of `lora_frozen_grid`: a dummy batch with as many ids as any batch of its key can have."""

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
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


def the_same_for_every_key(evidence: Evidence) -> str | None:
    spare = [b for b in captured(evidence) if b.counts[TOKENS] > max(ids_served(b), 2 * (b.key or 0))]
    return room(spare[0]) if spare else None


EXERCISE = Exercise(
    prose.beside(__file__),
    solution="keyed_full",
    whose="ours",
    watch=DummyLoRAWatch,
    harder=({"batch_size": 2, "max_loras": 1}, {"batch_size": 8, "max_loras": 3, "every_graph": 1}),
    mistakes=(
        adapter_in_no_slot,
        too_many_entries,
        no_kernels,
        only_the_last_key,
        too_small,
        nothing_programmed,
    ),
    remarks=(the_same_for_every_key,),
)
