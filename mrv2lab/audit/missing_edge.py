"""missing-edge: two pieces of work on the same memory, one of which writes it, and nothing orders them."""

from collections.abc import Iterator

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.order import HOST, Access
from mrv2lab.audit.report import Finding

KIND, SHORT, RANK = "missing-edge", "edge", 9
ASKED = "always"


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """Within a graph, between it and what is issued around it, and with the host, once for each memory.

    What the host may do too early it does before the next step, so the inputs vary once more. Whoever waits
    for nothing at all may have a caller that does: that is noted.
    """
    passes, order = evidence.passes, evidence.session.order
    if order is None:
        return
    if order.is_used:
        passes.vary_again()
    races = [race for capture in evidence.captures for race in capture.order.races] + order.races
    told = set[int]()
    for first, second in races:
        storage = second.touched.storage
        if storage in told:
            continue
        told.add(storage)
        at, place = evidence.order(second.position), evidence.session.positions.place(second.position)
        text = _text(first, second) + f" at {evidence.session.positions.place(first.position)}"
        finding = Finding(KIND, _name(evidence, second), text, place)
        if HOST not in (first.stream, second.stream) or order.has_events:
            yield at, finding
        else:
            passes.notes.append(f"{finding.subject}: {text}; that is right if the caller waits in between")


def _text(first: Access, second: Access) -> str:
    if second.stream == HOST:
        done = "writes" if second.touched.written else "reads"
        been = "written" if first.touched.written else "read"
        return f"the host {done} it, and nothing has waited until it has been {been} by {first.name}"
    writes, reads = ("writes" if access.touched.written else "reads" for access in (second, first))
    return f"{second.name} {writes} it on one stream, and {reads} it on another, unordered: {first.name}"


def _name(evidence: Evidence, access: Access) -> str:
    """What the step, or `vary`, calls the memory."""
    found = evidence.path(access.touched.address)
    if found is None:
        roots = names.Reachable(evidence.passes.engine.vary)
        found = next((n for n in names.walk(roots) if names.covers(n[1], access.touched.address)), None)
    return found[0] if found else f"a tensor of shape {list(access.touched.shape)}"
