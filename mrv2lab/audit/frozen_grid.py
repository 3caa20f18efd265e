"""frozen-grid: a kernel is launched with another grid now than the graph holds."""

from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.report import Finding

KIND, SHORT, RANK = "frozen-grid", "grid", 2
ASKED = "differ"


def find(evidence: Evidence) -> Findings:
    """Launches whose grid at the new inputs differs from the captured one."""
    for captured, event, _ in evidence.pairs():
        if captured.grid != event.grid:
            text = f"captured with grid {captured.grid}, launched with {event.grid} now"
            yield evidence.eager.when(event), Finding(KIND, event.name, text, evidence.eager.place(event))
