"""The exercise of `lora_frozen_grid`: a dummy batch with as many ids as any batch of its key can have."""

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.dummy_lora import TOKENS, Dummy, DummyLoRAWatch
from mrv2lab.errors import counted
from mrv2lab.results import Run


def ids_served(batch: Dummy) -> int:
    """The most ids that a batch of this size and key can have: its adapters, and none."""
    return min(batch.num_reqs, min(batch.key or 0, len(batch.slots)) + 1)


def room(batch: Dummy) -> dict[str, object]:
    requests, ids = counted(batch.num_reqs, "request"), counted(batch.counts[TOKENS], "id")
    return {"key": batch.key, "requests": requests, "ids": ids, "served": ids_served(batch)}


def mistakes(run: Run, watch: DummyLoRAWatch) -> Observed:
    yield from watch.adapter_in_no_slot(run)
    last, batches = watch.last, [b for b in watch.batches if b.key]  # of graphs for batches with adapters
    if last and last.mapping and (run.message or "").startswith("IllegalAccess"):
        yield "too_many_entries", {"entries": len(last.mapping.index_mapping), "tokens": last.num_tokens}
    for batch in batches:
        if batch.flags[TOKENS]:
            yield "no_kernels", {"key": batch.key, "size": batch.num_reqs}
    with_nobody = {b.key for b in batches if b.mapping and 0 in b.mapping.index_mapping}
    for batch in batches:  # those with a grid that is too small for some batch of their key
        if batch.flags[TOKENS] or batch.counts[TOKENS] >= ids_served(batch):
            continue
        if not any(b.mapping for b in batches):
            yield "nothing_programmed", room(batch)
        elif with_nobody == {max(b.key or 0 for b in batches)}:
            yield "only_the_last_key", room(batch)
        else:
            yield "too_small", room(batch)


def remarks(run: Run, watch: DummyLoRAWatch) -> Observed:
    for batch in (b for b in watch.batches if b.key):
        if batch.counts[TOKENS] > max(ids_served(batch), 2 * (batch.key or 0)):
            yield "the_same_for_every_key", room(batch)
            return


EXERCISE = Exercise(**prose.beside(__file__), watch=DummyLoRAWatch, mistakes=mistakes, remarks=remarks)
