"""diverged: replay and eager pass give different results, and nothing that was looked for explains it."""

from collections.abc import Iterator
from math import inf

from mrv2lab.audit import twin
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.left_behind import setter
from mrv2lab.audit.parting import parting
from mrv2lab.audit.report import Finding, Place

KIND, SHORT, RANK = "diverged", "div", 5
ASKED = "nothing"


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """The results that are off, and the line at which they begin to be."""
    parted = None
    for label, error in evidence.differs.items():
        text = "differ" if error == inf else f"are apart by {error:.3g} of the largest value"
        text = f"replay and eager pass {text}, at the same inputs"
        if (found := _without_work(evidence, label)) is not None:
            yield found[0], Finding(KIND, label, text, found[1])
            continue
        at, place, why = parted = parted or parting(evidence)
        yield at, Finding(KIND, label, f"{text}; {why}", place)
    if not evidence.differs:
        yield from twin.find(evidence, KIND)


def _without_work(evidence: Evidence, label: str) -> tuple[int, Place | None] | None:
    """Where the eager pass returns or sets what the run does not have, or has as another value."""
    run, eager = evidence.results.run, evidence.results.eager
    if label in eager.left.keys() - run.made.keys():
        return setter(evidence, label.partition(",")[0])[:2]
    if label in eager.values or label in run.returned.keys() ^ eager.returned.keys():
        at = evidence.eager.returned_at()
        return evidence.order(at), evidence.session.positions.place(at)
    return None
