"""What a pass does to the device, in order: the same record of an eager pass and of a capture."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from mrv2lab.audit.atoms import MISSING, Atom
from mrv2lab.audit.lines import ROOT, Lines, same
from mrv2lab.audit.memory import Seen
from mrv2lab.audit.report import Changed, Place, changed_as
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.work import moves

Key = tuple[int, str, int]  # position, name, and how many of this name came before at the same position


class TensorArgument(NamedTuple):
    """A tensor that an event reads or writes."""

    label: str  # name of the parameter
    address: int  # where its first element lies
    num_bytes: int  # how far it reaches
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # of dimensions in which there is a next element
    is_own: bool  # the pass has made it
    written: bool  # the event may write it


def is_elsewhere(old: TensorArgument, new: TensorArgument) -> bool:
    """Whether two tensors from outside of their passes are not the same memory."""
    return old.address != new.address and not (old.is_own or new.is_own)


class Event(NamedTuple):
    """One op, view or launch."""

    # `op` and `launch` are device work; `view` and `alloc` are bookkeeping of the host
    sort: Literal["op", "view", "alloc", "launch"]
    name: str  # `aten.mm`, or the kernel's
    key: Key  # the same in two passes for the same moment
    grid: tuple[int, int, int] | None  # of a launch
    # host values that were passed, by parameter; defaults and None among them
    scalars: tuple[tuple[str, Any], ...]
    # tensors that were passed, in order; of a launch those that its constants let it touch
    tensors: tuple[TensorArgument, ...]
    # False for what was issued during a capture on another stream than the captured one
    in_graph: bool = True
    is_splitting: bool = False  # issued where piecewise graphs split a model: attention
    spot: int = -1  # the instruction of its line that issued it: one of several expressions

    @property
    def is_work(self) -> bool:
        return self.sort in ("op", "launch")

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tensor.shape for tensor in self.tensors]

    @property
    def computes(self) -> bool:
        """Whether it is work that `graphs.work` counts."""
        return self.sort == "launch" or (self.sort == "op" and not moves(self.name.removeprefix("aten.")))

    def outside(self) -> frozenset[int]:
        """Where what it is given lies; 0 for what the pass has made."""
        return frozenset(0 if tensor.is_own else tensor.address for tensor in self.tensors)

    def scalars_with(self, other: "Event") -> Iterator[tuple[str, Any, Any]]:
        """The host values that both were passed: parameter, value here, value there."""
        theirs = dict(other.scalars)
        return ((label, value, theirs[label]) for label, value in self.scalars if label in theirs)

    def tensors_with(self, other: "Event") -> Iterator[tuple[TensorArgument | None, TensorArgument | None]]:
        """The tensors of both by parameter; None where only one of them was given a tensor."""
        ours, theirs = ({tensor.label: tensor for tensor in event.tensors} for event in (self, other))
        return ((ours.get(label), theirs.get(label)) for label in ours | theirs)

    def elsewhere_in(self, other: "Event") -> Iterator[tuple[TensorArgument, TensorArgument]]:
        """The tensors from outside of both passes that lie elsewhere for the other."""
        both = ((old, new) for old, new in self.tensors_with(other) if old and new)
        return ((old, new) for old, new in both if is_elsewhere(old, new))


class Made(NamedTuple):
    """A tensor that work has made."""

    tensor: Seen
    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


Cause = tuple[str, Any, Any, int]  # subject, value in the first pass and in the second, position of a branch


@dataclass
class Trace:
    """One pass."""

    lines: Lines  # knows where the pass is
    # for each position that ran, the values of its statement's atoms
    values: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    # in order; where a graph was replayed, the graph
    events: list[Event | CapturedGraph] = field(default_factory=list)
    made: dict[Key, list[Made]] = field(default_factory=dict)  # by the event that made them
    random: list[Event] = field(default_factory=list)  # events that drew random numbers
    drawn_from: list[int] = field(default_factory=list)  # hashes of where generators were before each of them
    # for each pass through an anchor, how many events came before it
    first: dict[int, int] = field(default_factory=dict)
    replayed_at: Place | None = None  # the line that replayed a graph last
    # for an event whose tensor lies elsewhere than in the pass it is compared with, names of it
    moved: dict[tuple[Key, str], str] = field(default_factory=dict)
    still: set[tuple[Key, str]] = field(default_factory=set)  # where that pass's tensor is held as well
    innocent: set[Changed] = field(default_factory=set)  # host values that are known to change nothing
    # what is asked of a pass that is over, for thousands of its turns: see `branches`
    made_at: dict[Any, set[Any]] = field(default_factory=dict, init=False)
    _known: dict[int, tuple["Trace", int, dict[Any, Cause | None]]] = field(default_factory=dict, init=False)
    _turns: Counter[tuple[int, str]] = field(default_factory=Counter)
    _by_key: dict[Key, Event] = field(default_factory=dict)
    _when: dict[Key, int] = field(default_factory=dict)

    def key(self, name: str) -> Key:
        """The key of an event that happens now."""
        at = (self.lines.current, name)
        self._turns[at] += 1
        return (*at, self._turns[at] - 1)

    def turns(self, key: Key) -> int:
        """How often what has this key happened at its position."""
        return self._turns[key[:2]]

    def add(self, event: Event) -> None:
        self.first.setdefault(self.lines.num_passes, len(self.events))
        self.events.append(event)
        self._by_key[event.key] = event
        self._when[event.key] = len(self.values)
        self.lines.works()

    def amend(self, index: int, sort: Literal["op"]) -> None:
        """Say of an event what has come out only after it."""
        event = self.events[index]
        assert isinstance(event, Event)
        self.events[index] = self._by_key[event.key] = event._replace(sort=sort)

    @cached_property
    def spots_of_work(self) -> dict[int, set[int]]:
        """For each position the instructions of which a tensor has come, once the pass is over."""
        found: dict[int, set[int]] = {}
        for event in self.own():
            if event.is_work and (self.made.get(event.key) or any(t.written for t in event.tensors)):
                found.setdefault(event.key[0], set()).add(event.spot)
        return found

    def known_beside(self, other: "Trace") -> dict[Any, Cause | None]:
        """What was found out beside another pass, as long as no more values are known to change nothing."""
        _, num_innocent, known = self._known.get(id(other), (other, -1, {}))
        if num_innocent != len(self.innocent):
            _, _, known = self._known[id(other)] = other, len(self.innocent), {}
        return known

    def get(self, key: Key) -> Event | None:
        return self._by_key.get(key)

    def when(self, event: Event) -> int:
        """How many positions had run when an event happened."""
        return self._when[event.key]

    def own(self) -> Iterator[Event]:
        """What Python issued in this pass; what replayed graphs did is left out."""
        return (event for event in self.events if isinstance(event, Event))

    def reads_again(self, tensor: torch.Tensor) -> bool:
        """Whether work reads there what work before it has written."""
        begins, ends, work = self._touched
        begin, is_written = tensor.data_ptr(), False
        there = np.flatnonzero((begins < begin + tensor.nbytes) & (ends > begin))
        for _, both in groupby((work[i] for i in there), itemgetter(0)):
            writes = [written for _, written in both]
            if is_written and not all(writes):
                return True
            is_written |= any(writes)
        return False

    @cached_property
    def _touched(self) -> tuple[np.ndarray, np.ndarray, list[tuple[int, bool]]]:
        """Where memory begins and ends that work touches, by the number of that, and whether it is written:
        once the pass is over."""
        work = enumerate(event for event in self.own() if event.is_work)
        given = [(t, (number, t.written)) for number, event in work for t in event.tensors]
        begins = np.array([t.address for t, _ in given], np.int64)
        return begins, begins + np.array([t.num_bytes for t, _ in given], np.int64), [by for _, by in given]

    def returned_at(self) -> int:
        """The position of the last line of the outermost function; ROOT if none ran."""
        positions = self.lines.positions
        return next((at for at in reversed(self.values) if at and positions.parent(at) == ROOT), ROOT)

    def last_pass(self) -> "Trace":
        """What has happened since an anchor was called last; all of it if there is none."""
        since = self.first.get(self.lines.num_passes, len(self.events))
        return Trace(self.lines, dict(self.lines.latest), self.events[since:])

    def anchored(self) -> "Trace":
        """What lies in calls of an anchor: what an engine does beside them is no part of the step."""
        positions, anchors = self.lines.positions, self.lines.anchors
        if not anchors:
            return self

        def inside(position: int) -> bool:
            chain = positions.chain(position)
            return bool(chain) and positions.code(chain[-1]) in anchors

        values = {position: values for position, values in self.values.items() if inside(position)}
        return replace(self, values=values, events=[e for e in self.own() if inside(e.key[0])])

    def all_made(self) -> Iterator[tuple[Key, int, Made]]:
        """What work has made, with the event that made it and a number."""
        return ((key, i, one) for key, made in self.made.items() for i, one in enumerate(made))

    def replayed(self) -> list[CapturedGraph]:
        return [event for event in self.events if isinstance(event, CapturedGraph)]

    def num_nodes(self) -> int:
        """Of the graphs that were replayed."""
        return sum(len(graph.nodes) for graph in self.replayed())

    def beside_graphs(self) -> list[Event]:
        """Work that computes and belongs into a graph."""
        return [event for event in self.own() if event.computes and not event.is_splitting]

    def place(self, event: Event) -> Place | None:
        return self.lines.positions.place(event.key[0])


def changed(old: Trace, new: Trace, position: int) -> list[tuple[Atom, Any, Any]]:
    """The host values of a line that differ between two passes, each with both values."""
    if position not in old.values or position not in new.values:
        return []
    both = zip(new.lines.positions.atoms(position), old.values[position], new.values[position], strict=True)
    known = ((atom, a, b) for atom, a, b in both if a is not MISSING and b is not MISSING)
    found = [(atom, a, b) for atom, a, b in known if not (atom.is_late or same(a, b))]
    if not new.innocent:
        return found
    return [one for one in found if changed_as(one[0].text, *one[1:]) not in new.innocent]
