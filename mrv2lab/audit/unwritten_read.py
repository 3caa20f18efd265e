"""unwritten-read: what came out, or where memory was touched, depends on memory nobody wrote."""

import ast
from collections.abc import Iterator

from mrv2lab.audit.atoms import statements_at
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.recorder import Session, UnwrittenIndex
from mrv2lab.audit.report import Finding, Place

KIND, SHORT, RANK = "unwritten-read", "unwr", 4


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """Allocations whose initial content reached a result."""
    for allocation in evidence.unwritten:
        place = evidence.session.positions.place(allocation.position)
        subject = _target(place)
        text = (
            f"a result changes with what the {allocation.dtype} tensor of shape "
            f"{list(allocation.shape)} held before anybody wrote it"
        )
        yield evidence.order(allocation.position), Finding(KIND, subject, text, place)


def _target(place: Place | None) -> str:
    """What the line that allocates assigns to; the line itself if it assigns to nothing."""
    if place is None:
        return "torch.empty"
    assignments = [s for s in statements_at(place.file, place.line) if isinstance(s, ast.Assign)]
    allocating = [s for s in assignments if "empty" in ast.unparse(s.value)]  # others may share the line
    target = next(iter(allocating or assignments), None)
    return ast.unparse(target.targets[0]) if target else place.source


def of_stop(session: Session, stop: UnwrittenIndex) -> Finding:
    """The read at which a pass was stopped, because it would have addressed memory by garbage."""
    allocated = session.positions.place(stop.allocated) if stop.allocated else None
    origin = f", allocated at {allocated}" if allocated else ", made by a capture that was never replayed"
    text = f"{stop.reader} takes addresses or loop bounds from it{origin}, and nobody has written it"
    return Finding(KIND, stop.subject, text, session.positions.place(stop.position))
