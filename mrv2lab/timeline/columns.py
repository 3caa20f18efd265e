"""Timelines side by side on one axis: which pieces of work get a column, and what each run did there.

A step has a hundred pieces of work and a picture has room for a few. A rule chooses: what the graph gets
wrong, kernels before torch's ops; in a short step everything. The rest is counted.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mrv2lab.audit import Place
from mrv2lab.audit.atoms import MISSING
from mrv2lab.audit.timelines import PHASES, Frozen, Happening, Phase, Timeline

MOST_SLOTS = 4
_FEW = 5  # pieces of work: a step with no more of them is drawn whole

Key = tuple[str, Place | None]


@dataclass(frozen=True)
class Slot:
    """What a column is about: a line that reads a host value, a piece of work, or the rest up to the next."""

    sort: Literal["read", "work", "rest"]  # which of these
    name: str = ""  # of the kernel or op
    place: Place | None = None  # the line
    after: "Slot | None" = None  # of a rest, the slot before it


@dataclass(frozen=True)
class Column:
    """One moment of the common time axis; without a slot it is the moment at which inputs change."""

    phase: Phase | Literal["new inputs"]
    slot: Slot | None


@dataclass
class Moment:
    """What one run did in one column."""

    python: int = 0  # lines that launched work or read the host value
    graph: int = 0  # nodes that were recorded, or replayed
    device: int = 0  # pieces of work that ran
    missing: int = 0  # pieces that an eager pass runs there at the same inputs, and this run did not
    place: Place | None = None  # the line; of what is missing, the line that would do it
    value: Any = MISSING  # the host value, or the address, where it was read; missing where nobody looked
    is_frozen: bool = False  # from here on the graph holds on to this value
    is_stale: bool = False  # the graph does it as the old value said

    @property
    def is_empty(self) -> bool:
        return not (self.python or self.graph or self.device or self.missing or self.is_frozen)


@dataclass
class Lanes:
    """Several runs over one axis."""

    timelines: Sequence[Timeline]  # the runs
    columns: list[Column]  # the axis
    frozen: Frozen | None  # what the first run that holds on to something holds on to
    moments: dict[tuple[int, int], Moment]  # by run and column

    def at(self, run: int, column: int) -> Moment:
        return self.moments[run, column]

    def of_phase(self, phase: str) -> list[int]:
        return [i for i, column in enumerate(self.columns) if column.phase == phase]

    def work(self) -> list[Slot]:
        slots = [column.slot for column in self.columns if column.slot and column.slot.sort == "work"]
        return list(dict.fromkeys(slots))

    def goes_wrong(self) -> set[Slot]:
        """The work that some run's graph does not hold, or does as an old value said."""
        marked = (self.columns[i].slot for (_, i), m in self.moments.items() if m.missing or m.is_stale)
        return {slot for slot in marked if slot is not None and slot.sort == "work"}

    def nodes_until(self, run: int, column: int) -> Counter[str]:
        """What the graph of a run holds when a column has passed, by name; `` for what is only counted."""
        found: Counter[str] = Counter()
        for i in self.of_phase("capture"):
            moment, slot = self.at(run, i), self.columns[i].slot
            if i <= column and slot and moment.graph:
                found[slot.name] += moment.graph
        return found


def lanes(timelines: Sequence[Timeline]) -> Lanes:
    """Put runs on one axis. Each column of work is there for each phase, so that what is absent shows."""
    frozen = next((t.frozen for t in timelines if t.frozen), None)
    runs = [_Run(timeline, timelines[0], frozen) for timeline in timelines]
    chosen = _chosen(runs)
    for run in runs:
        run.sort_out(chosen)
    sequences = [[slot for slot, _ in run.slots[phase]] for phase in ("eager", *PHASES) for run in runs]
    slots = _merged(sequences)
    columns = [Column(phase, slot) for phase in PHASES[:2] for slot in slots]
    columns += [Column("new inputs", None), *(Column("replay", slot) for slot in slots)]
    moments = {(i, j): run.moment(column) for i, run in enumerate(runs) for j, column in enumerate(columns)}
    return Lanes(timelines, columns, frozen, moments)


class _Run:
    """One of the runs that are put on one axis."""

    def __init__(self, timeline: Timeline, first: Timeline, frozen: Frozen | None):
        self.timeline, self.frozen = timeline, frozen
        self.passes = {"eager": timeline.eager, **timeline.phases}
        self.slots: dict[str, list[tuple[Slot, Happening]]] = {}  # by phase, each happening that shows
        self._same = _same_work(first, timeline)

    def key(self, happening: Happening) -> Key:
        """Under which name and line a piece of work goes in all runs."""
        own = happening.name, happening.place
        return self._same.get(own, own)

    def sort_out(self, chosen: set[Key]) -> None:
        """Give each happening its slot: the one that the same moment of the eager pass has."""
        known: dict[Any, Slot] = {}
        for phase in ("eager", *PHASES):
            self.slots[phase] = list(self._with_slots(phase, chosen, known))
            known = known or {h.key: slot for slot, h in self.slots["eager"]}

    def _with_slots(
        self, phase: str, chosen: set[Key], known: dict[Any, Slot]
    ) -> Iterator[tuple[Slot, Happening]]:
        seen: set[Slot] = set()
        rest, read = Slot("rest"), None if self.frozen is None or self.frozen.is_address else self.frozen
        for happening in self.passes[phase]:
            if happening.is_work:
                own = Slot("work", *self.key(happening))
                is_first = self.key(happening) in chosen and own not in seen
                slot = known.get(happening.key) or (own if is_first else rest)
            elif read and happening.place == read.place and read.label in dict(happening.values):
                slot, read = Slot("read", place=happening.place), None  # of several the first
            else:
                continue
            rest = slot if slot.sort == "rest" else Slot("rest", after=slot)
            seen.add(slot)
            yield slot, happening

    def moment(self, column: Column) -> Moment:
        eager = [h for slot, h in self.slots["eager"] if slot == column.slot]
        if column.slot is None:
            return Moment(value=self._value([h for _, h in self.slots["eager"]]))
        here = [h for slot, h in self.slots[column.phase] if slot == column.slot]
        moment = Moment(
            python=sum(h.in_python for h in here),
            graph=sum(h.in_graph for h in here),
            device=sum(h.on_device for h in here),
            place=next((h.place for h in here or eager), None),
            value=self._value(here),
        )
        if self.timeline.frozen and column.phase == "capture":
            moment.is_frozen = moment.value is not MISSING
        if self.timeline.goes_wrong and column.phase == "replay":
            expected = sum(h.is_work for h in eager)
            moment.missing = max(0, expected - moment.device)
            affected = {h.key for h in self.timeline.affected}
            is_other = moment.device > expected or any(h.key in affected for h in eager)
            moment.is_stale = moment.graph > 0 and column.slot.sort == "work" and is_other
        return moment

    def work(self) -> list[Happening]:
        """What an eager pass does at the new inputs; then what only the replay does."""
        eager = [h for h in self.timeline.eager if h.is_work]
        known = {self.key(h) for h in eager}
        return eager + [h for h in self.timeline.phases["replay"] if h.is_work and self.key(h) not in known]

    def _value(self, here: Sequence[Happening]) -> Any:
        """The host value, or the address, as the first of these has it."""
        if (frozen := self.frozen) is None:
            return MISSING
        same = (h for h in here if h.place == frozen.place and h.is_work == frozen.is_address)
        values = (dict(h.values).get(frozen.label, MISSING) for h in same)
        return next((value for value in values if value is not MISSING), MISSING)


def _same_work(first: Timeline, other: Timeline) -> dict[Key, Key]:
    """Where two runs are of two functions: the same op, in order, is the same work. Else nothing."""
    theirs, own = ({(h.name, h.place): None for h in t.eager if h.is_work} for t in (first, other))
    free = [key for key in theirs if key not in own]
    same: dict[Key, Key] = {}
    for key in own:
        twin = next((candidate for candidate in free if candidate[0] == key[0]), None)
        if key not in theirs and twin is not None:
            same[key] = twin
            free.remove(twin)
    return same


def _chosen(runs: Sequence[_Run]) -> set[Key]:
    """Work that gets a column of its own."""
    if short := [run for run in runs if len(run.work()) <= _FEW]:
        return {run.key(h) for run in short for h in run.work()}
    run = next((run for run in runs if run.timeline.affected), runs[0])
    done = {run.key(h) for h in run.timeline.phases["replay"]}
    affected = {run.key(h) for h in run.timeline.affected}
    wanted = [h for h in run.work() if run.key(h) in affected or h.is_launch] or run.work()
    ranked = sorted(wanted, key=lambda h: (not h.is_launch, h.is_launch and run.key(h) in done))
    return set(list(dict.fromkeys(map(run.key, ranked)))[:MOST_SLOTS])


def _merged(sequences: Sequence[Sequence[Slot]]) -> list[Slot]:
    """One order that has them all: what is new goes behind what came before it."""
    merged: list[Slot] = []
    for sequence in sequences:
        at = 0
        for slot in dict.fromkeys(sequence):
            if slot in merged:
                at = max(at, merged.index(slot) + 1)
            else:
                merged.insert(at, slot)
                at += 1
    return merged
