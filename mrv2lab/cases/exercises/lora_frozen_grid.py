"""The exercise of `lora_frozen_grid`: a dummy batch with as many ids as any batch of its key can have."""

from collections.abc import Iterator

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Evidence, Exercise
from mrv2lab.cases.exercises.dummy_lora import FLAG, TOKENS, Dummy, DummyLoRAWatch, adapter_in_no_slot
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


def too_many_entries(evidence: Evidence) -> Iterator[str]:
    batch = evidence.watch.last
    if batch and batch.mapping and (evidence.run.message or "").startswith("IllegalAccess"):
        entries = len(batch.mapping.index_mapping)
        yield f"The mapping has {entries} entries, the batch {batch.num_tokens} tokens."


def no_kernels(evidence: Evidence) -> Iterator[str]:
    for batch in captured(evidence):
        if batch.flags[TOKENS]:
            yield (
                f"Where key {batch.key} meets size {batch.num_reqs} no token had an adapter, so "
                f"{TOKENS}.{FLAG} was True and no LoRA kernel was captured."
            )


def only_the_last_key(evidence: Evidence) -> Iterator[str]:
    last = max((batch.key or 0 for batch in captured(evidence)), default=0)
    with_nobody = {b.key for b in captured(evidence) if b.mapping and 0 in b.mapping.index_mapping}
    if with_nobody == {last}:
        yield from map(room, short(evidence))


def too_small(evidence: Evidence) -> Iterator[str]:
    if any(batch.mapping for batch in captured(evidence)):
        yield from map(room, short(evidence))


def nothing_programmed(evidence: Evidence) -> Iterator[str]:
    if not any(batch.mapping for batch in captured(evidence)):
        yield from (f"No mapping was programmed before a capture. {room(b)}" for b in short(evidence))


def the_same_for_every_key(evidence: Evidence) -> Iterator[str]:
    for batch in captured(evidence):
        if batch.counts[TOKENS] > max(ids_served(batch), 2 * (batch.key or 0)):
            yield room(batch)


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
