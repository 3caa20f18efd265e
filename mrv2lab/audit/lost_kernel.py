"""lost-kernel: work that an eager pass does and the graph does not."""

from collections import Counter
from collections.abc import Iterator

from mrv2lab.audit import nodes
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.report import Finding
from mrv2lab.audit.trace import Event

KIND, SHORT, RANK = "lost-kernel", "lost", 3
ASKED = "differ"


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """Multiset difference between the eager pass and what the run did.

    An op that is given no tensor makes constants: who has kept them from the warm-up has lost nothing.
    """
    eager = Counter(event.name for event in evidence.eager.own() if event.is_work and event.tensors)
    done = Counter(event.name for event, _ in evidence.done.values())
    lost = eager - done
    for event in evidence.missing():
        if lost.pop(event.name, 0):
            grid = f" with grid {event.grid}" if event.grid else ""
            text = f"{eager[event.name]} eagerly{grid}, {done[event.name]} in the graph"
            text += _elsewhere(evidence, event)
            yield evidence.eager.when(event), Finding(KIND, event.name, text, evidence.eager.place(event))
    yield from _inside(evidence)


def _inside(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    event, eager = next((event for _, event, _ in evidence.given_otherwise()), None), evidence.eager
    order, where = (eager.when(event), eager.place(event)) if event else nodes.first_apart(evidence)
    for name, count in evidence.lost_inside.items():
        text = f"{count} more when captured at these inputs than in the graph; an op launches it, not Python"
        yield order, Finding(KIND, name, text, where)


def _elsewhere(evidence: Evidence, event: Event) -> str:
    """Whether it was issued during capture, but on a stream that was not captured."""
    twins = [capture.trace.get(event.key) for capture in evidence.replayed]
    on_other_stream = any(twin is not None and not twin.in_graph for twin in twins)
    return "; during capture it was issued on another stream" if on_other_stream else ""
