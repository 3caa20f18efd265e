"""missing-edge: two pieces of work on the same memory, one of which writes it, and nothing orders them."""

from collections.abc import Iterator

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.order import HOST, Access, Race
from mrv2lab.audit.report import Finding

KIND, SHORT, RANK = "missing-edge", "edge", 9
ASKED = "always"
_STEPS = 3  # for which the inputs are varied once more: buffers that take turns come round


def find(evidence: Evidence) -> Findings:
    """Within a graph, between it and what is issued around it, and with the host, once for each memory.

    What the host may do too early it does before the next steps, so the inputs vary again. Where the program
    has marked no event to wait for, its caller may wait between two calls: that is noted.
    """
    passes, order = evidence.passes, evidence.session.order
    if order is None:
        return
    for _ in range(_STEPS if order.is_used else 0):
        if not passes.vary_again():
            break
    told = set[int]()
    if order.has_unknown and order.num_streams > 1:
        passes.notes.append("graphs that were captured before the audit began: what they touch is not known")
    for race in sorted(_races(evidence), key=lambda race: not race.is_sure):
        first, second = race.first, race.second
        storage = second.touched.storage
        if storage in told:
            continue
        told.add(storage)
        (_, place), (at, where) = evidence.at(first.position), evidence.at(second.position)
        who, elsewhere = (second.name, ", on another stream") if second.stream != HOST else ("the host", "")
        does, still = ("write" if one.touched.written else "read" for one in (second, first))
        text = f"{who} {does}s it while {first.name} at {place} may still {still} it{elsewhere}"
        finding = Finding(KIND, _name(evidence, second), text, where)
        if race.is_wrong:
            yield at, finding
        else:
            unless = "the caller waits in between" if race.is_waited else "they touch different parts of it"
            passes.notes.append(f"{finding.subject}: {text}, unless {unless}")


def _races(evidence: Evidence) -> Iterator[Race]:
    for order in (*(capture.order for capture in evidence.captures), evidence.session.order):
        yield from order.races if order is not None else ()


def is_found(evidence: Evidence) -> bool:
    """Whether a race is told so far, and not only noted: then no two passes need agree."""
    return any(race.is_wrong for race in _races(evidence))


def _name(evidence: Evidence, access: Access) -> str:
    """What the step, or `vary`, calls the memory."""
    found = evidence.path(access.touched.address)
    if found is None:
        held = names.walk(names.Reachable(evidence.passes.engine.vary))
        found = names.at(held, access.touched.address)
    return found[0] if found else f"a tensor of shape {list(access.touched.shape)}"
