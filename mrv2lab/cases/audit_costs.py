"""What audits of growing graphs cost, as recorded."""

import json
from pathlib import Path

from pydantic import ValidationError

from mrv2lab.audit.cost import Cost
from mrv2lab.errors import RecordError
from mrv2lab.results import Document, Provenance

FILE = Path(__file__).resolve().parent.parent.parent / "data" / "audit-cost.json"


class Costs(Document):
    """All sizes, measured on one machine by one command."""

    provenance: Provenance
    costs: list[Cost]


def load(path: Path = FILE) -> Costs:
    """Read recorded costs.

    Raises:
        RecordError: not there, damaged, or not such a record.
    """
    try:
        return Costs.model_validate(json.loads(path.read_text()))
    except (OSError, json.JSONDecodeError, ValidationError) as error:
        raise RecordError(
            f"{path}: no costs ({type(error).__name__}); make them with mrv2lab audit --cost --save FILE"
        ) from error
