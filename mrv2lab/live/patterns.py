"""Copies that an audited capture holds beside its own work: replayed while an audit looks on, and else not.

An audit gives what a capture allocates a pattern: a small copy for each allocation, which is a node of the
graph (`audit.memory.Cells`). Whoever serves with that graph would pay for them at each replay, and more than
half as much for nodes that are only disabled. So torch's graph is given another content: a clone of what was
captured, with those nodes or without them. torch instantiates and replays it as before.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import finalize

import torch

from mrv2lab.audit.launches import node_handles
from mrv2lab.audit.recorder import Capture, Session
from mrv2lab.graphs.base import Node, _idle, _observers, _watchers
from mrv2lab.graphs.cuda import _checked, _read_node
from mrv2lab.graphs.foreign import ForeignGraph, observable_graphs

LOG = logging.getLogger("vllm.mrv2lab")
_given: list[Session] = []  # those whose graphs give their patterns now


@contextmanager
def holding_graphs() -> Iterator[None]:
    """As `observable_graphs`, of graphs that can be given another content than what was captured."""
    original: Any = torch.cuda.CUDAGraph
    with observable_graphs():
        observable: Any = torch.cuda.CUDAGraph

        class HoldingGraph(observable):  # type: ignore[misc]
            _captured = 0  # the driver's handle of what was captured, where something else is held

            def replay(self) -> None:
                if _given or _observers.get() or _watchers.get() or _idle.get():
                    super().replay()
                else:  # nearly each one of a server
                    original.replay(self)

            def raw_cuda_graph(self) -> int:
                """What was captured, whatever it holds meanwhile."""
                return self._captured or super().raw_cuda_graph()

            def hold(self, content: Any) -> None:
                """Replay a graph of the driver's, a copy of it, in place of what was captured."""
                from cuda.bindings import driver

                own = driver.CUgraph(super().raw_cuda_graph())
                if not self._captured:
                    self._captured = int(_checked(driver.cuGraphClone(own)))
                    finalize(self, driver.cuGraphDestroy, driver.CUgraph(self._captured))
                # Where that fails, torch keeps what it has: a try of its own begins by letting go of it.
                _checked(driver.cuGraphExecDestroy(_checked(driver.cuGraphInstantiate(content, 0))))
                for node in node_handles(int(own)):
                    _checked(driver.cuGraphDestroyNode(node))
                _checked(driver.cuGraphAddChildGraphNode(own, [], 0, content))
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
    """Inside, each of them that is replayed gives its patterns again. Exceptions as in `withhold`; where one
    is not to be had without them behind that, a warning says so."""
    giving: set[ForeignGraph] = set()

    def replay(graph: ForeignGraph) -> None:
        if graph not in giving and graph._replay_it.__self__._captured and _gives(graph, session):
            _hold(graph, session, are_left_out=False)
            giving.add(graph)
        graph._replay_it()

    with patch.object(ForeignGraph, "_replay", replay):
        _given.append(session)
        try:
            yield
        finally:
            _given.pop()
            failed = [error for graph in giving if (error := _tried(_withhold, graph, session))]
            if failed:
                LOG.warning("%d graphs stay as slow as audits make them: %s", len(failed), failed[0])


def _withhold(graph: Any, session: Session) -> int:
    if not _gives(graph, session):
        return 0
    return _hold(graph, session, are_left_out=True)


def _gives(graph: Any, session: Session) -> bool:
    nodes = graph.nodes if isinstance(graph, ForeignGraph) else ()
    return any(_is_ours(node, session) for node in nodes)


def _is_ours(node: Node, session: Session) -> bool:
    return any(map(session.cells.holds, node.addresses))


def _hold(graph: ForeignGraph, session: Session, are_left_out: bool) -> int:
    """Returns how many nodes are left out."""
    from cuda.bindings import driver

    own, number = graph._replay_it.__self__, 0
    part = _checked(driver.cuGraphClone(driver.CUgraph(own.raw_cuda_graph())))
    try:
        for node in node_handles(int(part)) if are_left_out else ():
            if _is_ours(_read_node(driver, node), session):  # asked of the very node that goes
                _leave_out(driver, part, node)
                number += 1
        own.hold(part)
    finally:
        _checked(driver.cuGraphDestroy(part))
    return number


def _leave_out(driver: Any, graph: Any, node: Any) -> None:
    """Destroy a node. What comes behind it comes behind what it came behind, and waits for all of that."""
    # cuda.bindings 12 has it with data of edges under another name.
    add = getattr(driver, "cuGraphAddDependencies_v2", driver.cuGraphAddDependencies)
    before = _all(driver.cuGraphNodeGetDependencies, node)
    behind = _all(driver.cuGraphNodeGetDependentNodes, node)
    _checked(driver.cuGraphDestroyNode(node))
    for one in before:
        there = [*map(int, _all(driver.cuGraphNodeGetDependentNodes, one))]
        for other in (other for other in behind if int(other) not in there):
            _checked(add(graph, [one], [other], None, 1))


def _tried(do: Callable[..., Any], *args: Any) -> Exception | None:
    try:
        do(*args)
    except Exception as error:
        return error
    return None


def _all(ask: Callable[..., Any], node: Any) -> list[Any]:
    *_, count = _checked(ask(node))
    return list(_checked(ask(node, count))[0]) if count else []
