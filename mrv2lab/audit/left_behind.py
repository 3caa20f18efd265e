"""left-behind: a step leaves a value in Python, and a replay does not: it runs no Python."""

from collections.abc import Iterator

from mrv2lab.audit.evidence import Evidence
from mrv2lab.audit.lines import same
from mrv2lab.audit.report import Finding

KIND, SHORT, RANK = "left-behind", "left", 8
ASKED = "nothing"


def find(evidence: Evidence) -> Iterator[tuple[int, Finding]]:
    """Values that both eager passes leave, and the replay does not; a count of calls is none of them."""
    run, eager, again = evidence.left
    for path in run.keys() & eager.keys() & again.keys():
        if same(eager[path], again[path]) and not same(run[path], eager[path]):
            text = f"is {run[path]!r} after a replay and {eager[path]!r} after the step, which sets it"
            yield 0, Finding(KIND, path, text, change=(run[path], eager[path]))
