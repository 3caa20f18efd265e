"""missing-edge: two pieces of work on the same memory, one of which writes it, and nothing orders them."""

from collections.abc import Iterator

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.order import HOST, Access
from mrv2lab.audit.report import Finding, Place

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
        text = _text(first, second, evidence.session.positions.place(first.position))
        finding = Finding(KIND, _name(evidence, second), text, place)
        if second.stream != HOST or order.has_events:
            yield at, finding
        else:
            passes.notes.append(f"{finding.subject}: {text}, unless the caller waits in between")


def _text(first: Access, second: Access, place: Place | None) -> str:
    who = "the host" if second.stream == HOST else second.name
    does = "writes" if second.touched.written else "reads"
    still = "write" if first.touched.written else "read"
    where = "" if second.stream == HOST else ", on another stream"
    return f"{who} {does} it while {first.name} at {place} may still {still} it{where}"


def _name(evidence: Evidence, access: Access) -> str:
    """What the step, or `vary`, calls the memory."""
    found = evidence.path(access.touched.address)
    if found is None:
        roots = names.Reachable(evidence.passes.engine.vary)
        found = next((n for n in names.walk(roots) if names.covers(n[1], access.touched.address)), None)
    return found[0] if found else f"a tensor of shape {list(access.touched.shape)}"
