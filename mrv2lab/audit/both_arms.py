"""Work that both arms of a branch do: what the other arm has made as well at capture is not left out.

It may go on elsewhere from there, and if an op of the user's got other numbers, such as the address of a
buffer, nobody knows what they mean. So the value that the branch asked is named, but only where nothing else
is found.
"""

from mrv2lab.audit.branches import cause_of
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.frozen_host_value import finding
from mrv2lab.audit.lines import same

RANK = 0
ASKED = "nothing"


def find(evidence: Evidence) -> Findings:
    if evidence.differs:
        yield from doubted(evidence)


def doubted(evidence: Evidence) -> Findings:
    """The first host value by which an op was issued in another arm."""
    for captured, event, trace in evidence.in_both_arms:
        if cause := cause_of(trace, evidence.eager, event.key[0]):
            numbers = ((label, a, b) for label, a, b in captured.scalars_with(event) if not same(a, b))
            got = [f"{label}={old!r} there, now {new!r}" for label, old, new in numbers]
            then = f"; {event.name} was captured in the other arm" + (f": it got {got[0]}" if got else "")
            at, place = evidence.at(cause[3])
            yield at, finding(evidence, cause, then, place)
            return
