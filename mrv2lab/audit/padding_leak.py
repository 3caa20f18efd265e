"""padding-leak: real rows of the result change with what the rows behind the batch hold."""

from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import storage_of
from mrv2lab.audit.report import Finding
from mrv2lab.audit.stale_input import Part, depends, not_refreshed

KIND, SHORT, RANK = "padding-leak", "pad", 1
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """Asked where it is said how many rows are real: what `vary` left behind them is given two patterns."""
    if (rows := evidence.passes.num_rows) is None:
        return
    for part in depends(evidence, _behind(evidence, rows), rows):
        text = f"the first {rows} rows of the result change with what rows {rows} and up of it hold"
        text += ", NaN or a number, and nobody has written those for this step"
        at, place = evidence.user(part.tensor)
        yield at, Finding(KIND, evidence.called(part.tensor), text, place)


def unasked(evidence: Evidence) -> str | None:
    """Words where it is said how many rows are real, and `vary` has written all that lie behind them."""
    passes, rows = evidence.passes, evidence.passes.num_rows
    if rows is None or any(part.mask.any() for part in _behind(evidence, rows).values()):
        return None
    shadows = ((tensor, passes.refreshed.get(storage_of(tensor))) for tensor in passes.static())
    written = (tensor for tensor, shadow in shadows if shadow is not None and shadow.written.any())
    if (padded := next((tensor for tensor in written if len(tensor) > rows), None)) is None:
        return None
    told = f"vary() has written {evidence.called(padded)} behind its {rows} real rows too"
    return f"{told}, so what they do to the real ones was not asked: let it write those alone"


def _behind(evidence: Evidence, rows: int) -> dict[int, Part]:
    """What `vary` has left as it was behind the real rows, of tensors that it has written."""
    left = {n: part for n, part in not_refreshed(evidence).items() if part.is_partly}
    return {n: part.of_rows(rows, None) for n, part in left.items()}
