"""not-rearmed: the first replay is right and a later one is not: it goes on from what the last has left."""

from collections.abc import Callable, Set
from dataclasses import replace
from functools import partial
from typing import Any

from mrv2lab.audit import frozen_host_value
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import put, storage_of
from mrv2lab.audit.passes import nothing
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import Results, agree, apart
from mrv2lab.audit.unwritten_read import responsible

KIND, SHORT, RANK = "not-rearmed", "rearm", 6
ASKED = "nothing"
_NUM_STEPS = 3

Row = Callable[..., list[Results]]


def find(evidence: Evidence) -> Findings:
    """Replay several times in a row and put nothing back; do the same eagerly."""
    passes, engine = evidence.passes, evidence.passes.engine
    is_asked = engine.is_one and evidence.captures and evidence.repeats and not evidence.eager.replayed()
    if not is_asked or evidence.differs:  # then the first replay is wrong
        return
    if not (tensors := [tensor for tensor, *_ in evidence.results.written]):
        return  # nothing is handed on from step to step

    def row(step: Callable[[], Any], between: Callable[[], None] = nothing) -> list[Results]:
        return passes.in_a_row(step, _NUM_STEPS, tensors, between)

    both = [(run, row(run)) for run in (engine.run, engine.eager)]
    replays, eager = (seen for _, seen in both)
    rounded = max(evidence.results.excused, default=0.0)  # in each step, as rounding explains
    if (wrong := _first_apart(replays, eager, rounded)) is None:
        yield from _of_filled(evidence, row, replays)
        return
    if evidence.eager.random and not all(map(_is_same, eager, row(engine.eager))):
        return  # what is drawn in one step is used in the next
    held = dict(enumerate(evidence.results.run.written))

    def cures(group: Set[int]) -> bool:
        put_back = partial(put, [(held[n].tensor, held[n].before) for n in group])
        return _first_apart(row(engine.run, put_back), eager, rounded) is None

    found = responsible(held, cures) or [held[n] for n in _together(set(held), cures)]
    for tensor, *_ in found:
        text = f"replay {wrong + 1} in a row is the first wrong one: it goes on from what the last has left"
        at, place = evidence.user(tensor, is_write=True)
        yield at, Finding(KIND, evidence.called(tensor), text, place)
    frozen, told = (
        [] if found else _of_frozen(evidence),
        f"replay {wrong + 1} in a row is the first wrong one",
    )
    yield from ((at, replace(one, evidence=f"{one.evidence}; {told}")) for at, one in frozen)
    is_unnamed = not (found or frozen or passes.is_rewound)  # else the next request says more
    if is_unnamed and all(_first_apart(row(run), seen) is None for run, seen in both):  # and not by chance
        yield 0, Finding(KIND, engine.name, f"{told}, whatever is put back of what is written")


def _of_frozen(evidence: Evidence) -> list[tuple[int, Finding]]:
    """Host values that each eager step moves on and leaves in memory for the next one, where `vary` does not
    write that anew."""
    changed, memory = evidence.passes.changed or {}, {storage_of(t) for t in evidence.results.unsettled}
    memory -= {storage_of(t) for path, t in evidence.named if path in changed}
    if all(f"0x{storage:x}" in changed for storage in memory):
        return []
    moved = {place for place, (_, is_state) in evidence.unsteady.items() if is_state}
    return [(at, one) for at, one in frozen_host_value.find(evidence) if one.where in moved]


def _is_same(one: Results, other: Results) -> bool:
    """To the last bit."""
    both = one.first(), other.first()
    return not any(apart(both[0][name], both[1][name]) for name in both[0].keys() & both[1].keys())


def _together(held: Set[int], cures: Callable[[Set[int]], bool]) -> Set[int]:
    """Where no tensor alone cures it: those that do together, none of which can be left out."""
    needed = set(held)
    if not cures(needed):
        return set()
    for n in held:
        needed -= {n} if cures(needed - {n}) else set()
    return needed


def _of_filled(evidence: Evidence, row: Row, replays: list[Results]) -> Findings:
    """What the step itself has filled once, when it made it: nobody does so again, eagerly neither. Where
    each step goes on to another result, as a position does, that may be meant: it is noted."""
    is_stuck = len(replays) == _NUM_STEPS and _first_apart(replays[1:2], replays[2:3]) is None
    written = {tensor.data_ptr() for tensor, *_ in evidence.results.run.written}
    for tensor, content, position in evidence.passes.made.filled():
        if tensor.data_ptr() in written:
            filled = row(evidence.passes.engine.run, partial(put, [(tensor, content)]))
            if _first_apart(filled, replays) is not None:
                text = "filled when it was made, never again: if it is, each step gives another result"
                at, place = evidence.at(position)
                name = evidence.called(tensor)
                if is_stuck:
                    yield at, Finding(KIND, name, text, place)
                else:
                    evidence.passes.notes.append(f"{name}: {text}, at {place}; it may be meant")


def _first_apart(some: list[Results], others: list[Results], rounded: float = 0.0) -> int | None:
    pairs = enumerate(zip(some, others, strict=False))
    apart = (i for i, (a, b) in pairs if not agree(a, b, (i + 1) * rounded))
    ends_sooner = len(some) if len(some) != len(others) else None  # it raises, like an index that has run out
    return next(apart, ends_sooner)
