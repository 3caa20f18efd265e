"""Copies that an audited capture holds beside its own work: replayed while an audit looks on, and else not.

An audit gives what a capture allocates a pattern: a small copy for each allocation, which is a node of the
graph (`audit.memory.Cells`). Whoever serves with that graph would pay for them at each replay, and more than
half as much for nodes that are only disabled. So torch's graph is given another content: a clone of what was
captured, with those nodes or without them. torch instantiates and replays it as before.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import finalize

import torch

from mrv2lab.audit.launches import node_handles
from mrv2lab.audit.recorder import Capture, Session
from mrv2lab.graphs.cuda import _checked
from mrv2lab.graphs.foreign import ForeignGraph, observable_graphs


@contextmanager
def holding_graphs() -> Iterator[None]:
    """As `observable_graphs`, of graphs that can be given another content than what was captured."""
    with observable_graphs():
        observable: Any = torch.cuda.CUDAGraph

        class HoldingGraph(observable):  # type: ignore[misc]
            _captured = 0  # the driver's handle of what was captured, where something else is held

            def raw_cuda_graph(self) -> int:
                """What was captured, whatever it holds meanwhile."""
                return self._captured or super().raw_cuda_graph()

            def hold(self, content: Any) -> None:
                """Replay a graph of the driver's, a copy of it, in place of what was captured."""
                from cuda.bindings import driver

                own = driver.CUgraph(super().raw_cuda_graph())
                if not (captured := self._captured):
                    captured = int(_checked(driver.cuGraphClone(own)))
                    finalize(self, driver.cuGraphDestroy, driver.CUgraph(captured))
                for node in node_handles(int(own)):
                    _checked(driver.cuGraphDestroyNode(node))
                _checked(driver.cuGraphAddChildGraphNode(own, [], 0, content))
                self._captured = captured
                self.instantiate()

        with patch.object(torch.cuda, "CUDAGraph", HoldingGraph):
            yield


def withhold(captures: Iterable[Capture], session: Session) -> int:
    """Have graphs that torch has captured give no patterns from now on.

    Returns:
        How many nodes that are.

    Raises:
        CaptureError: the driver refuses.
    """
    return sum(_withhold(capture.graph, session) for capture in captures)


@contextmanager
def given(session: Session) -> Iterator[None]:
    """Inside, each of them that is replayed gives its patterns again. Exceptions as in `withhold`."""
    giving: set[ForeignGraph] = set()

    def replay(graph: ForeignGraph) -> None:
        if graph not in giving and graph._replay_it.__self__._captured and _ours(graph, session):
            _hold(graph, [])
            giving.add(graph)
        graph._replay_it()

    with patch.object(ForeignGraph, "_replay", replay):
        try:
            yield
        finally:
            for graph in giving:
                _withhold(graph, session)


def _withhold(graph: Any, session: Session) -> int:
    if ours := _ours(graph, session):
        _hold(graph, ours)
    return len(ours)


def _ours(graph: Any, session: Session) -> list[int]:
    """The numbers of those nodes."""
    nodes = graph.nodes if isinstance(graph, ForeignGraph) else ()
    return [number for number, node in enumerate(nodes) if any(map(session.cells.holds, node.addresses))]


def _hold(graph: ForeignGraph, left_out: list[int]) -> None:
    from cuda.bindings import driver

    own = graph._replay_it.__self__
    part = _checked(driver.cuGraphClone(driver.CUgraph(own.raw_cuda_graph())))
    nodes = node_handles(int(part))
    for number in left_out:
        _leave_out(driver, part, nodes[number])
    own.hold(part)
    _checked(driver.cuGraphDestroy(part))


def _leave_out(driver: Any, graph: Any, node: Any) -> None:
    """Destroy a node. What comes behind it comes behind what it came behind."""
    before = _all(driver.cuGraphNodeGetDependencies, node)
    behind = _all(driver.cuGraphNodeGetDependentNodes, node)
    _checked(driver.cuGraphDestroyNode(node))
    for one in before:
        there = [*map(int, _all(driver.cuGraphNodeGetDependentNodes, one))]
        for other in (other for other in behind if int(other) not in there):
            _checked(driver.cuGraphAddDependencies(graph, [one], [other], None, 1))


def _all(ask: Callable[..., Any], node: Any) -> list[Any]:
    *_, count = _checked(ask(node))
    return list(_checked(ask(node, count))[0]) if count else []
