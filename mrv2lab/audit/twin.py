"""Two fresh engines, one captured and one not: what leaks into both passes of an audit shows between them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from mrv2lab.audit import frozen_grid, frozen_host_value, lost_kernel, names, stale_input
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.memory import clone
from mrv2lab.audit.passes import Engine, Pass, Passes, naming, nothing
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import is_off, padding_cut, returned
from mrv2lab.errors import AuditError
from mrv2lab.graphs import CapturedGraph, capture
from mrv2lab.graphs.base import replayed

_NUM_REQUESTS = 6
_CAUSES = (frozen_host_value, frozen_grid, lost_kernel)  # of memory, each engine has its own

Tensors = dict[str, torch.Tensor]


class Fresh:
    """An engine to serve with, as `audit` is told of one: `step`, `vary` and what else `made` has.

    Without a backend it runs eagerly; with one it is captured, or replays graphs of its own.
    """

    def __init__(self, made: Any, backend: str | None, is_captured: bool = False):
        self.made = made  # its memory lives as long as it does
        self.step, self.vary = made.step, made.vary
        self.reset = getattr(made, "reset", None) or nothing
        self.rows, self.finish = getattr(made, "rows", None), getattr(made, "finish", None)
        self.run = made.step if backend else getattr(made, "eager", made.step)
        self.graph: CapturedGraph | None = None
        self.reset()
        with replayed() as own:
            self.run()
        if is_captured and not own:
            beside, self.graphs = getattr(made, "beside", ()), list[CapturedGraph]()
            for step in (*beside, made.step, *beside):
                if step is not made.step:
                    step()
                self.graphs.append(capture(step, backend=backend or "auto"))
            self.graph = self.graphs[len(beside)]
            self.run = partial(_replay, self.graph)


def _replay(graph: CapturedGraph) -> Any:
    graph.replay()
    return graph.outputs


class Request(NamedTuple):
    """What the step found in the tensors that it reads, and its results."""

    inputs: Tensors
    results: Tensors
    error: Exception | None = None  # that the replay raised


def find(evidence: Evidence, kind: str) -> Iterator[tuple[int, Finding]]:
    """Serve requests on both. Of the first that differs: causes, or stale inputs, or itself, as `kind`."""
    passes, engine = evidence.passes, evidence.passes.engine
    if engine.twin is None:
        return
    with passes.made.unwatched(), naming("when it was served"):
        ours = _serve(evidence, Fresh(engine.twin(), passes.session.backend, bool(evidence.captures)))
        theirs = _serve(evidence, Fresh(engine.twin(), None))
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.error is not None:
            yield 0, Finding(kind, passes.engine.name, f"replay {number + 1} in a row raised {one.error!r}")
            return
        off = [path for path, tensor in other.results.items() if not _same(one.results.get(path), tensor)]
        if not off:
            continue
        causes = _causes(evidence, number, other.results) if number < _NUM_REQUESTS else []
        causes = causes or list(_stale(evidence, one.inputs, other.inputs))
        other_one = "a fresh engine that runs eagerly"
        text = f"request {number + 1} of those in a row: {other_one} gives another result"
        if number == _NUM_REQUESTS:
            text = f"what is made of the results differs from what {other_one} makes of them"
        yield from causes or [(0, Finding(kind, off[0], text))]
        return


def _serve(evidence: Evidence, engine: Fresh) -> list[Request]:
    """Requests in a row, and at last what the caller makes of the results."""
    served: list[Request] = []
    for _ in range(_NUM_REQUESTS):
        engine.reset()
        engine.vary()
        inputs, rows = _read(evidence, engine), engine.rows and engine.rows()
        try:
            results = returned(engine.run())
        except Exception as error:
            if engine.graph is None:
                raise
            return [*served, Request({}, {}, error)]
        served.append(Request(inputs, {path: t[:rows] if t.dim() else t for path, t in results.items()}))
    if engine.finish is not None:
        served.append(Request({}, returned(engine.finish())))
    return served


def _read(evidence: Evidence, engine: Fresh) -> Tensors:
    """Copies of the tensors that the step reads, by path."""
    read = {address for event in evidence.eager.own() for _, address, *_ in event.tensors}
    paths = {path for path, tensor in evidence.named if tensor.data_ptr() in read}
    return {path: clone(tensor) for path, tensor in names.walk(names.Reachable(engine.step)) if path in paths}


def _watched(evidence: Evidence, number: int) -> Pass:
    """The step itself, run eagerly by another fresh engine at this request."""
    passes = evidence.passes
    assert passes.engine.twin is not None
    with passes.made.unwatched(), naming("when it was served"):
        twin = Fresh(passes.engine.twin(), None)
        for earlier in range(number + 1):
            twin.reset()
            twin.vary()
            if earlier < number:
                twin.step()
    roots = names.Reachable(twin.step)
    return Passes(passes.session, Engine("twin", nothing, nothing, twin.step, roots=roots)).eager()


def _causes(evidence: Evidence, number: int, right: Tensors) -> list[tuple[int, Finding]]:
    """What the graph holds and a fresh engine would not do, if its step is right when it runs eagerly."""
    try:
        twin = _watched(evidence, number)
    except AuditError:  # it cannot run like that at all
        return []
    made = twin.results.returned
    if not all(path in made and _same(padding_cut(made[path], t), t) for path, t in right.items()):
        return []
    both = replace(evidence, eager_pass=twin)
    return [found for kind in _CAUSES for found in kind.find(both)]


def _stale(evidence: Evidence, ours: Tensors, theirs: Tensors) -> Iterator[tuple[int, Finding]]:
    """Inputs that hold something else in a fresh engine."""
    for path, tensor in theirs.items():
        if path in ours and not _same(ours[path], tensor):
            held = dict(evidence.named).get(path)
            at, place = evidence.user(held) if held is not None else (0, None)
            text = "a fresh engine that is served the same holds something else there"
            yield at, Finding(stale_input.KIND, path, f"{text}: nobody has refreshed it", place)


def _same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    return a is not None and a.shape == b.shape and not is_off(a, b)
