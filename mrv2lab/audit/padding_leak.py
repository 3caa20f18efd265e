"""padding-leak: real rows of the result change with what the rows behind the batch hold."""

from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.report import Finding
from mrv2lab.audit.stale_input import depends, not_refreshed

KIND, SHORT, RANK = "padding-leak", "pad", 1
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """Asked where it is said how many rows are real: what `vary` left behind them is given two patterns."""
    if (rows := evidence.passes.num_rows) is None:
        return
    behind = {n: part for n, part in not_refreshed(evidence).items() if part.is_partly}
    for part in depends(evidence, {n: part.of_rows(rows, None) for n, part in behind.items()}, rows):
        text = f"the first {rows} rows of the result change with what rows {rows} and up of it hold"
        text += ", NaN or a number, and nobody has written those for this step"
        at, place = evidence.user(part.tensor)
        yield at, Finding(KIND, evidence.called(part.tensor), text, place)
