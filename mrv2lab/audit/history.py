"""Since when a tensor differs between two fresh engines that a step finds wrong, and what was done then."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, cycle, islice

import torch

from mrv2lab.audit import frozen_host_value, left_behind, lost_kernel, stale_input
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.fresh import Fresh, engine_of, holds_same
from mrv2lab.audit.memory import clone, storage_of
from mrv2lab.audit.passes import Pass, naming, nothing
from mrv2lab.audit.recorder import Capture
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import Results
from mrv2lab.audit.watched import Seen, Watched, parted


def since(evidence: Evidence, number: int, name: str) -> Findings:
    """What was done where a tensor began to differ that the step of a request finds: as the engines were
    made, as a request was prepared, or in the step of an earlier one."""
    return _since(evidence, 2 * number + 2, name)


def _since(evidence: Evidence, num_phases: int, name: str) -> Findings:
    captured = evidence.session.backend, bool(evidence.captures)
    mine, theirs = engine_of(evidence, *captured), engine_of(evidence)
    with evidence.passes.made.unwatched(), naming("when it was served"):
        both = zip(*(islice(_states(one, name), num_phases) for one in (mine, theirs)), strict=True)
        held = [pair for pair in both]
    phase = next((i for i, (a, b) in enumerate(held) if b is None or not holds_same(a, b)), None)
    if phase is None or None in (pair := held[phase]):
        return
    request, is_run = divmod(phase - 1, 2)
    if phase == 0:
        yield from _as_made(evidence, name)
    elif is_run:
        one, other = pair
        for at, found in Watched(evidence, request).causes({name: one}, {name: other}):
            told = f"{found.evidence}; so {name} differs from request {request + 2} on"
            yield at, replace(found, evidence=told)
    else:
        yield from _as_prepared(evidence, request, name)


def _states(engine: Fresh, name: str) -> Iterator[torch.Tensor | None]:
    """What a tensor holds when the engine is made, behind the preparation of a request, behind its step."""
    for phase in chain([nothing], cycle([engine.prepare, engine.run])):
        phase()
        held = dict(engine.held()).get(name)
        yield None if held is None else clone(held)


def _as_made(evidence: Evidence, name: str) -> Findings:
    """Work that is done more often where graphs are made: for a warm-up, or a capture."""
    seen = []
    for how in ((evidence.session.backend, bool(evidence.captures)), ()):
        seen.append(Seen(evidence.session))
        with naming("when it was made"), seen[-1]:
            engine = engine_of(evidence, *how)
        seen[-1].begun = [*engine.held()]
    mine, theirs = seen
    writer = mine.written_by.get(storage_of(dict(mine.begun)[name]))
    if writer is not None:
        place = mine.trace.place(writer)
        if mine.done[place, writer.name] > theirs.done[place, writer.name]:
            text = (
                f"{writer.name} has written it before the first request, for a warm-up or a capture: where "
            )
            text += "all runs eagerly it holds something else"
            yield 0, Finding(left_behind.KIND, name, text, place)


def _as_prepared(evidence: Evidence, request: int, name: str) -> Findings:
    traces = []
    for how in ((evidence.session.backend, bool(evidence.captures)), ()):
        engine = engine_of(evidence, *how)
        for _ in range(request):
            engine.prepare()
            engine.run()
        seen = Seen(evidence.session)
        seen.engine, seen.begun = engine, [*engine.held()]
        with naming("when it was served"), seen:
            engine.prepare()
        traces.append(seen)
    mine, theirs = traces
    capture = Capture(mine.trace, mine.trace, 0)
    eager = Pass(theirs, Results({}, []), {})
    both = replace(evidence, captures=[capture], run=mine.trace, eager_pass=eager, of_two=True)
    when = f"when request {request + 1} is prepared, and {name} is made of it"
    for at, found in (one for kind in (frozen_host_value, lost_kernel) for one in kind.find(both)):
        old, new = found.change or ("", "")
        text = f"is {old!r} there, and {new!r}" if found.change else "is done less often there than"
        text += " where all runs eagerly, "
        yield at, replace(found, kind=left_behind.KIND, evidence=text + when)
        return
    if (first := next(parted(mine, theirs), None)) is not None:
        subject, event, place = first
        yield from _since(evidence, 2 * request + 1, subject)
        yield 0, Finding(stale_input.KIND, subject, f"{event} reads something else there {when}", place)
