"""diverged: replay and eager pass give different results, and nothing that was looked for explains it."""

from collections.abc import Iterator
from math import inf

from mrv2lab.audit import twin
from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.report import Finding

KIND, SHORT, RANK = "diverged", "div", 5
ASKED = "nothing"


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """The results that are off."""
    for label, error in evidence.differs.items():
        apart = "differ" if error == inf else f"are apart by {error:.3g} of the largest value"
        yield 0, Finding(KIND, label, f"replay and eager pass {apart}, at the same inputs")
    if not evidence.differs:
        yield from twin.find(evidence, KIND)
