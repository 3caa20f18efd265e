"""The copies that an audited capture holds beside its own work, in use only while an audit looks on.

An audit gives what a capture allocates a pattern: a small copy for each allocation, which is a node of the
graph (`audit.memory.Cells`). Whoever serves with that graph would pay for them at each replay. The driver can
disable single nodes of a graph that is instantiated (`cuGraphNodeSetEnabled`), for the replays that follow.
"""

from collections.abc import Iterable
from typing import Any

from mrv2lab.audit.recorder import Capture, Session
from mrv2lab.graphs.cuda import _checked
from mrv2lab.graphs.foreign import ForeignGraph


def switch(captures: Iterable[Capture], session: Session, is_on: bool) -> int:
    """Have graphs that torch has captured give their patterns, or not.

    Returns:
        How many nodes that are.

    Raises:
        CaptureError: the driver refuses; AttributeError: this torch does not hand out instantiated graphs.
    """
    number = 0
    for graph in (capture.graph for capture in captures):
        if isinstance(graph, ForeignGraph):
            ours = [i for i, node in enumerate(graph.nodes) if any(map(session.cells.holds, node.addresses))]
            _enable(graph._replay_it.__self__, ours, is_on)
            number += len(ours)
    return number


def _enable(graph: Any, numbers: list[int], is_on: bool) -> None:
    """Nodes of a `torch.cuda.CUDAGraph` by their numbers in it."""
    from cuda.bindings import driver

    if numbers:
        handle, made = driver.CUgraph(graph.raw_cuda_graph()), driver.CUgraphExec(graph.raw_cuda_graph_exec())
        nodes, _ = _checked(driver.cuGraphGetNodes(handle, len(graph._observed.nodes)))
        for number in numbers:
            _checked(driver.cuGraphNodeSetEnabled(made, nodes[number], int(is_on)))
