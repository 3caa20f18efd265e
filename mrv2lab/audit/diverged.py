"""diverged: replay and eager pass differ, and no cause is known: halved until one line of the step is left.

The graph is replayed as far as some line. What it has made and written by then is compared with what an eager
pass has there, so the line that is left gives the right thing when it runs eagerly, and not in the graph.
"""

import ctypes
from bisect import bisect_left
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any
from unittest import mock

import torch

from mrv2lab.audit import launches, twin
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.left_behind import setter
from mrv2lab.audit.memory import clone
from mrv2lab.audit.recorder import Capture, Mark, Recorder
from mrv2lab.audit.report import Finding, Place
from mrv2lab.audit.results import apart, is_off
from mrv2lab.audit.trace import Event, Made
from mrv2lab.errors import AuditError
from mrv2lab.graphs.cuda import _Memory

KIND, SHORT, RANK = "diverged", "div", 5
ASKED = "nothing"


def find(evidence: Evidence) -> Findings:
    """The results that are off, and the line at which they begin to be."""
    parted = None
    for label, error in evidence.differs.items():
        text = "differ" if error == inf else f"are apart by {error:.3g}, relatively"
        text = f"replay and eager pass {text}, at the same inputs"
        if (found := _without_work(evidence, label)) is not None:
            yield found[0], Finding(KIND, label, text, found[1])
            continue
        at, place, why = parted = parted or parting(evidence)
        yield at, Finding(KIND, label, f"{text}; {why}", place)
    if not evidence.differs:
        yield from twin.find(evidence, KIND)


def _without_work(evidence: Evidence, label: str) -> tuple[int, Place | None] | None:
    """Where the eager pass returns or sets what the run does not have, or has as another value."""
    run, eager = evidence.results.run, evidence.results.eager
    if label in eager.left.keys() - run.made.keys():
        return setter(evidence.eager, label.partition(",")[0])[:2]
    if label in eager.values or label in run.returned.keys() ^ eager.returned.keys():
        return evidence.at(evidence.eager.returned_at())
    return None


Parting = tuple[int, Place | None, str]  # place in the eager pass, line, and words


def parting(evidence: Evidence) -> Parting:
    """The line at which the graph goes wrong, or what is done beside it."""
    if not evidence.passes.engine.in_parts:
        return 0, None, "other ranks wait in it, so no part of it was replayed alone"
    if len(evidence.run.replayed()) == 1:
        for capture in evidence.replayed:
            key = partial(_is_apart, evidence, capture)
            with suppress(AuditError):  # no part of it can be replayed, or the eager pass goes another way
                if (first := bisect_left(capture.marks, True, key=key)) < len(capture.marks):
                    return _at(evidence, capture, first)
    beside = (event for event in evidence.run.own() if event.is_work and not evidence.eager.get(event.key))
    if (event := next(beside, None)) is not None:
        text = f"no part of the graph explains it; {event.name} is done beside it"
        return evidence.run.when(event), evidence.run.place(event), text
    for event, trace in evidence.extra() if evidence.passes.engine.is_one else ():
        return evidence.order(event.key[0]), trace.place(event), f"{event.name} is done by the graph alone"
    return 0, None, "no single part of the step explains it"


def _at(evidence: Evidence, capture: Capture, number: int) -> Parting:
    work = capture.work(number)
    names = ", ".join(dict.fromkeys(event.name for event in work)) or "what is done here"
    text = f"right when {names} runs eagerly: all that the graph has done before it is right"
    for captured in work:
        event = evidence.eager.get(captured.key)
        for old, new in captured.elsewhere_in(event) if event else ():
            text += f"; it got {old.label} at 0x{old.address:x}, and gets it at 0x{new.address:x} now"
    return *evidence.at(work[0].key[0] if work else capture.marks[number].position), text


def _is_apart(evidence: Evidence, capture: Capture, mark: Mark) -> bool:
    """Whether something is wrong in the graph's memory when it has been replayed as far as a mark."""
    wanted = _eagerly(evidence, capture, mark)
    held: list[dict[Any, torch.Tensor]] = []
    graph = capture.graph
    assert graph is not None

    def part() -> None:
        launches.replay_until(graph, mark.node)
        held.append(_made(evidence, capture, wanted) | _written(evidence))
        raise AuditError("what comes behind it is not asked")  # as if the step had raised it

    with mock.patch.object(graph, "_replay", part), suppress(AuditError):
        evidence.passes.run()
    if not held:
        raise AuditError(f"no part of {graph} can be replayed")
    off = apart if evidence.session.backend == "emulated" else is_off  # the same kernels give the same bits
    return any(off(value, wanted[name]) for name, value in held[0].items())


def _eagerly(evidence: Evidence, capture: Capture, mark: Mark) -> dict[Any, torch.Tensor]:
    """What an eager pass has made and still holds, and what memory that it writes holds. AuditError: it never
    gets there."""
    events = [event for event in capture.trace.events[: mark.num_events] if isinstance(event, Event)]
    found: list[dict[Any, torch.Tensor]] = []

    def look(recorder: Recorder, position: int) -> None:
        if not found and (not events or recorder.trace.get(events[-1].key)):
            with recorder.silent():
                made = ((key, i, one.tensor()) for key, i, one in recorder.trace.all_made())
                found.append(_written(evidence) | {(key, i): clone(t) for key, i, t in made if t is not None})

    evidence.passes.eager(passed=look)
    if not found:
        raise AuditError("the eager pass does something else")
    return found[0]


def _written(evidence: Evidence) -> dict[Any, torch.Tensor]:
    return {number: clone(written.tensor) for number, written in enumerate(evidence.results.written)}


def _made(evidence: Evidence, capture: Capture, wanted: dict[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
    """What the graph's memory holds of tensors that it makes and the eager pass still has."""
    found: dict[Any, torch.Tensor] = {}
    for key, i, one in capture.trace.all_made():
        event, twin = capture.trace.get(key), wanted.get((key, i))
        if event and event.in_graph and twin is not None and twin.shape == one.shape:
            found[key, i] = clone(_tensor(one, twin.dtype, evidence.session.device))
    return found


def _tensor(made: Made, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The memory of a graph where it has made a tensor."""
    elements = 1 + sum((n - 1) * s for n, s in zip(made.shape, made.stride, strict=True))
    num_bytes = elements * dtype.itemsize
    if device.type == "cuda":
        memory = torch.as_tensor(_Memory(made.address, num_bytes), device=device)
    else:
        memory = torch.frombuffer((ctypes.c_byte * num_bytes).from_address(made.address), dtype=torch.uint8)
    return memory.view(dtype).as_strided(made.shape, made.stride)
