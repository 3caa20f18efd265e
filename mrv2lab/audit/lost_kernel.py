"""lost-kernel: work that an eager pass does and the graph does not."""

from collections import Counter

from mrv2lab.audit import nodes
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.report import Finding, changed_as

KIND, SHORT, RANK = "lost-kernel", "lost", 3
ASKED = "differ"


def find(evidence: Evidence) -> Findings:
    """Multiset difference between the eager pass and what the run did. An op that is given no tensor makes
    constants: who has kept them from the warm-up has lost nothing."""
    eager = Counter(event.name for event in evidence.eager.own() if event.is_work and event.tensors)
    done = evidence.num_done
    lost = eager - done
    for event in evidence.missing():
        if lost.pop(event.name, 0):
            grid = f" with grid {event.grid}" if event.grid else ""
            text = f"{eager[event.name]} eagerly{grid}, {done[event.name]} in the graph"
            twins = [capture.trace.get(event.key) for capture in evidence.replayed]
            if any(twin is not None and not twin.in_graph for twin in twins):
                text += "; during capture it was issued on another stream"
            cause, where = evidence.decided(event), evidence.eager.place(event)
            by = cause and changed_as(*cause[:3])
            yield evidence.eager.when(event), Finding(KIND, event.name, text, where, by=by)
    yield from _inside(evidence)


def _inside(evidence: Evidence) -> Findings:
    event, eager = next((event for _, event, _ in evidence.given_otherwise()), None), evidence.eager
    order, where = (eager.when(event), eager.place(event)) if event else nodes.first_apart(evidence)
    for name, count in evidence.lost_inside.items():
        text = f"{count} more when captured at these inputs than in the graph; an op launches it, not Python"
        yield order, Finding(KIND, name, text, where)
