"""What audits of growing graphs cost, as recorded."""

from pathlib import Path

from mrv2lab.audit.cost import Cost
from mrv2lab.results import RECORDS, Kept

FILE = RECORDS / "audit-cost.json"


class Costs(Kept):
    """All sizes, measured on one machine by one command."""

    costs: list[Cost]


def load(path: Path = FILE) -> Costs:
    """Read recorded costs. RecordError: not there, damaged, or not such a record."""
    return Costs.read(path, "costs", "make them with mrv2lab audit cost --save FILE")
