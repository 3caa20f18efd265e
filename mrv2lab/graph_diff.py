"""What differs between two captured graphs: of two commits, two sizes, two ranks or two settings.

Nodes are paired in order, as many of one name as can be, and of all such choices one is taken in which most
pairs are alike in everything. A search from the longest common piece, as `difflib`'s, does not find that in a
chain that repeats itself: of 64 layers that lost four nodes it makes 100 lost and 96 new ones.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Literal

import numpy as np

from mrv2lab import results
from mrv2lab.described import Described, Node, describe, describe_target
from mrv2lab.errors import BadInput, counted
from mrv2lab.tables import Table

__all__ = ["Change", "Described", "GraphDiff", "describe", "describe_target", "diff"]

_FEW = 3  # nodes that a row names


class Change(results.Strict):
    """One difference between two nodes, or a node that only one graph has."""

    kind: Literal["lost", "new", "moved", "changed"]
    name: str
    at: int | None  # number of the node before, from 0; None for a new one
    now: int | None  # and after; None for a lost one
    what: str = ""  # what of it has changed: grid, a parameter, a buffer
    before: str = ""
    after: str = ""
    line: str = ""  # that launches it after; before, if it is lost


class GraphDiff(Table, results.Document):
    """The difference, in text, HTML and JSON. False if there is none."""

    steps: tuple[str, str]
    made_with: tuple[str, str]
    num_nodes: tuple[int, int]
    pool_bytes: tuple[int, int]
    changes: tuple[Change, ...]

    __str__ = Table.__repr__

    def __bool__(self) -> bool:
        return bool(self.changes) or self.pool_bytes[0] != self.pool_bytes[1]

    def rows(self) -> list[list[str]]:
        alike = defaultdict[tuple[str, ...], list[Change]](list)
        for one in self.changes:
            alike[one.kind, one.name, one.what, one.before, one.after, one.line].append(one)
        body = [[kind, _numbers(ones), *told] for (kind, *told), ones in alike.items()]
        if self.pool_bytes[0] != self.pool_bytes[1]:
            body.append(["changed", "", "the pool", "bytes", *(f"{n:,}" for n in self.pool_bytes), ""])
        return [["", "node", "name", "what", "before", "after", "line"], *body]

    def _below(self) -> str:
        told = zip(self.steps, self.num_nodes, self.made_with, strict=True)
        sides = [f"{step}, {counted(number, 'node')} ({made})" for step, number, made in told]
        names = ("before", "after") if self else ("equal in what is compared", "and")
        lines = map(": ".join, zip(names, sides, strict=True))
        return "\n".join([*lines, "not compared: dtypes, strides, contents"])


def diff(before: Described, after: Described) -> GraphDiff:
    """Compare two graphs. BadInput: one of a GPU and one of the emulator, which name nodes otherwise."""
    if before.backend != after.backend:
        told = f"{before.step} was captured on {before.backend} and {after.step} on {after.backend}"
        raise BadInput(f"{told}, which name their nodes otherwise; capture both on one")
    both = before, after
    return GraphDiff(
        steps=(before.step, after.step),
        made_with=(before.provenance.machine, after.provenance.machine),
        num_nodes=(len(before.nodes), len(after.nodes)),
        pool_bytes=(before.pool_bytes, after.pool_bytes),
        changes=tuple(_changes(*(list(one.nodes) for one in both))),
    )


def _changes(ours: list[Node], theirs: list[Node]) -> Iterator[Change]:
    """In the order of the graph before; what is new comes where it is."""
    pairs = [*align(ours, theirs), (len(ours), len(theirs))]
    moved = _moved(ours, theirs, pairs)
    arrived = {*moved.values()}
    i = j = 0
    for at, now in pairs:
        for lost in range(i, at):
            node, to = ours[lost], moved.get(lost)
            line = node.line if to is None else theirs[to].line
            yield Change(kind="lost" if to is None else "moved", name=node.label, at=lost, now=to, line=line)
        for new in range(j, now):
            if new not in arrived:
                yield Change(kind="new", name=theirs[new].label, at=None, now=new, line=theirs[new].line)
        if at < len(ours):
            yield from _apart(ours[at], theirs[now], at, now)
        i, j = at + 1, now + 1


def _apart(ours: Node, theirs: Node, at: int, now: int) -> Iterator[Change]:
    for name in ("launch", "numbers", "buffers"):
        old, new = getattr(ours, name), getattr(theirs, name)
        for what in (what for what in old | new if old.get(what) != new.get(what)):
            values = {"before": old.get(what, "-"), "after": new.get(what, "-")}
            label, line = theirs.label, theirs.line
            yield Change(kind="changed", name=label, at=at, now=now, what=what, line=line, **values)


def _moved(ours: list[Node], theirs: list[Node], pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Nodes without a partner that another place has got, alike in everything."""
    taken, given = map(set, zip(*pairs, strict=True))
    there = defaultdict[str, deque[int]](deque)
    for new in (j for j in range(len(theirs)) if j not in given):
        there[theirs[new].content].append(new)
    lost = ((i, there[ours[i].content]) for i in range(len(ours)) if i not in taken)
    return {i: places.popleft() for i, places in lost if places}


def align(ours: list[Node], theirs: list[Node]) -> list[tuple[int, int]]:
    """Pairs of nodes in order; see the module. Between the first and the last difference time and memory
    grow with the product of both lengths: a few seconds and 25 MB for 10,000 nodes each.
    """
    names = [[node.name for node in nodes] for nodes in (ours, theirs)]
    if names[0] == names[1]:
        return [(i, i) for i in range(len(ours))]
    contents = [[node.content for node in nodes] for nodes in (ours, theirs)]
    shorter, first, last = min(len(ours), len(theirs)), 0, 0
    while first < shorter and contents[0][first] == contents[1][first]:
        first += 1
    while last < shorter - first and contents[0][-1 - last] == contents[1][-1 - last]:
        last += 1
    ends = len(ours) - last, len(theirs) - last
    parts = ([text[first:end] for text, end in zip(both, ends, strict=True)] for both in (names, contents))
    between = [(first + i, first + j) for i, j in _best(*map(_as_numbers, parts))]
    behind = zip(range(ends[0], len(ours)), range(ends[1], len(theirs)), strict=True)
    return [*((i, i) for i in range(first)), *between, *behind]


Both = tuple[np.ndarray, np.ndarray]


def _as_numbers(texts: list[list[str]]) -> Both:
    known: dict[str, int] = {}
    ours, theirs = (np.array([known.setdefault(t, len(known)) for t in part], np.int32) for part in texts)
    return ours, theirs


def _best(names: Both, contents: Both) -> list[tuple[int, int]]:
    """The alignment of most points: many for a pair of one name, and one more if it is alike.

    Row by row: the most points that the nodes up to here and each start of the other graph can make.
    """
    many, points = len(names[1]) + 1, np.zeros(len(names[1]) + 1, np.int64)
    ends_in_pair, skips_ours = [], []  # for each node of ours a bit for each of theirs
    for name, content in zip(names[0], contents[0], strict=True):
        is_pair = names[1] == name
        paired = np.where(is_pair, points[:-1] + many + (contents[1] == content), -1)
        now = points.copy()
        np.maximum(now[1:], paired, out=now[1:])
        np.maximum.accumulate(now, out=now)
        ends_in_pair.append(np.packbits(paired == now[1:]))
        skips_ours.append(np.packbits(points[1:] == now[1:]))
        points = now
    found, i, j = list[tuple[int, int]](), len(names[0]) - 1, len(names[1]) - 1
    while i >= 0 and j >= 0:
        byte, bit = divmod(j, 8)
        if ends_in_pair[i][byte] >> (7 - bit) & 1:
            found.append((i, j))
            i, j = i - 1, j - 1
        elif skips_ours[i][byte] >> (7 - bit) & 1:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def _numbers(ones: list[Change]) -> str:
    """`3`, `3 > 5` where the number has changed, `3, 10, 17 and 61 more`."""
    if len(ones) == 1 and None not in (ones[0].at, ones[0].now) and ones[0].at != ones[0].now:
        return f"{ones[0].at} > {ones[0].now}"
    told = [str(one.now if one.at is None else one.at) for one in ones]
    more = len(told) - _FEW
    return ", ".join(told) if more <= 1 else f"{', '.join(told[:_FEW])} and {more} more"
