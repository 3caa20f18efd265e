"""Node by node: what a graph launches, beside one that is captured afresh at the inputs of now. CUDA only.

What Python passes is compared elsewhere. Here the driver is asked for what nobody in Python names: a number
inside of an op in C++, a grid that such an op chooses, a kernel that a library does. Parameters are compared
by words. Structures that are passed by value hold parts that nobody has set: so what differs between two
captures of the same is left out, and what is an address.
"""

import bisect
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from mrv2lab.audit import frozen_grid, frozen_host_value
from mrv2lab.audit.evidence import Evidence, Findings, explain
from mrv2lab.audit.launches import Launch, read
from mrv2lab.audit.report import Finding, Place

RANK = 0
ASKED = "nothing"
_MOST = 8  # findings


class Made(NamedTuple):
    """A node of a captured graph, and the position of the line that made it."""

    launch: Launch
    position: int
    is_seen: bool  # Python has passed all numbers there are


def find(evidence: Evidence) -> Findings:
    """Numbers and extents that differ between graphs of the same kernels. Of what Python passed, extents."""
    if not evidence.differs or evidence.afresh is None or len(evidence.replayed) != 1:
        return
    again = evidence.passes.capture_afresh()
    made, fresh, control = own(evidence), read(evidence.afresh), read(again) if again else []
    if not [one.launch.label for one in made] == [n.label for n in fresh] == [n.label for n in control]:
        return  # other kernels: see `lost_kernel`
    rows, spaces = zip(made, fresh, control, strict=True), _Spaces()
    apart = (found for one, *others in rows for found in _apart(evidence, spaces, one, *others))
    yield from islice(apart, _MOST)


def first_apart(evidence: Evidence) -> tuple[int, Place | None]:
    """Where the graph and one captured afresh stop to launch the same kernels: place in the pass, line."""
    if evidence.afresh is None or len(evidence.replayed) != 1:
        return 0, None
    made, fresh = own(evidence), read(evidence.afresh)
    both = (one.position for one, other in zip(made, fresh, strict=False) if one.launch.label != other.label)
    position = next(both, made[-1].position if made else 0)
    return evidence.at(position)


def own(evidence: Evidence) -> list[Made]:
    """Nodes of the graph that was replayed, the audit's own left out: it fills what nobody has written."""
    capture = evidence.replayed[0]
    assert capture.graph is not None
    launches, work = read(capture.graph), [event for event in capture.trace.own() if event.is_work]
    hidden = {event.key[0] for event in work if event.name in evidence.session.opaque}
    seen = {event.key[0] for event in work} - hidden  # lines of whose work the audit could look into all
    order, marks, found = {launch.node: i for i, launch in enumerate(launches)}, list(capture.marks), []
    for i, (launch, node) in enumerate(zip(launches, capture.graph.nodes, strict=False)):
        while marks and order.get(marks[0].node, -1) < i:
            marks.pop(0)
        position = marks[0].position if marks else 0
        if not any(map(evidence.session.cells.holds, node.addresses)):
            # An op in C++ may be made of others, which are seen, and of launches, which are not.
            is_torchs = "at::native" in node.name
            found.append(Made(launch, position, is_torchs and position in seen))
    return found


def _apart(evidence: Evidence, spaces: "_Spaces", made: Made, fresh: Launch, control: Launch) -> Findings:
    (at, place), ours = evidence.at(made.position), made.launch
    if ours.shape != fresh.shape == control.shape:
        text = f"grid, block and shared memory are {ours.shape} in the graph"
        text += f" and {fresh.shape} captured at these inputs; Python names none of them"
        yield at, Finding(frozen_grid.KIND, ours.label, text, place)
    if made.is_seen:
        return
    for number, (a, b, c) in enumerate(zip(ours.params, fresh.params, control.params, strict=False)):
        for begin, (old, new) in spaces.numbers_apart(a, b, c):
            parameter = f"parameter {number} of {ours.label}"
            words = f"{old} in the graph, {new} captured at these inputs"
            words += f" (bytes {begin} and up)" if len(a) > 8 else ""
            capture = evidence.replayed[0]
            found = explain(capture.trace, evidence.eager, made.position, (old, new))
            if found is None:
                text = f"{words}; Python does not pass it"
                yield at, Finding(frozen_host_value.KIND, parameter, text, place, (old, new))
            else:
                yield at, frozen_host_value.finding(evidence, found.cause, f"; {parameter}: {words}", place)


class _Spaces:
    """The addresses that this process knows: host memory, and the device's, which it has reserved."""

    def __init__(self) -> None:
        lines = Path("/proc/self/maps").read_text().splitlines()
        ends = (line.split(maxsplit=1)[0].split("-") for line in lines)
        self._ranges = sorted((int(begin, 16), int(end, 16)) for begin, end in ends)

    def numbers_apart(self, a: bytes, b: bytes, c: bytes) -> Iterator[tuple[int, tuple[float, float]]]:
        """Words that differ between `a` and `b`, not between `b` and `c`, and are no part of an address."""
        for begin in range(0, len(a), 4):
            words = [data[begin : begin + 4] for data in (a, b, c)]
            is_apart = words[0] != words[1] == words[2]
            if is_apart and not any(self._hold(data, begin - begin % 8) for data in (a, b)):
                yield begin, (_number(words[0]), _number(words[1]))

    def _hold(self, data: bytes, begin: int) -> bool:
        address = int.from_bytes(data[begin : begin + 8], "little")
        at = bisect.bisect(self._ranges, (address + 1,)) - 1
        return begin + 8 <= len(data) and at >= 0 and address < self._ranges[at][1]


def _number(word: bytes) -> float:
    """What four bytes are likely to mean: a float if it is of a usual size, else an integer."""
    (number,) = struct.unpack("<f", word.ljust(4, b"\0"))
    return float(number) if 1e-9 < abs(number) < 1e12 else int.from_bytes(word, "little", signed=True)
