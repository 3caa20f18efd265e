"""stale-input: an input that nobody has refreshed for this step, and that its result depends on."""

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch

from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import put_pattern, storage_of
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import is_off
from mrv2lab.audit.unwritten_read import responsible
from mrv2lab.errors import AuditError

KIND, SHORT, RANK = "stale-input", "stale", 0
ASKED = "always"
PATTERNS = (0, 5)  # of `memory.pattern`: a number, and NaN; of integers 0 and 1, which are good indices


@dataclass(frozen=True)
class Part:
    """Elements of a tensor that `vary` did not write."""

    tensor: torch.Tensor
    mask: np.ndarray  # which, in its shape
    is_partly: bool  # `vary` has written others

    def of_rows(self, first: int, last: int | None) -> "Part":
        """Those in some rows."""
        mask = np.zeros_like(self.mask)
        mask[first:last] = self.mask[first:last]
        return replace(self, mask=mask)


def find(evidence: Evidence) -> Findings:
    """Asked of the inputs that are named: what `vary` left of them as it was is given two patterns."""
    rows, named = evidence.passes.num_rows, [storage_of(t) for t in evidence.passes.engine.inputs]
    parts = {n: part for n, part in not_refreshed(evidence).items() if storage_of(part.tensor) in named}
    for part in depends(evidence, {n: part.of_rows(0, rows) for n, part in parts.items()}, rows):
        some = "some of it" if part.is_partly else "none of it"
        text = f"the result changes with what it holds, and `vary` has written {some} for this step"
        at, place = evidence.user(part.tensor)
        yield at, Finding(KIND, evidence.called(part.tensor), text, place)


def not_refreshed(evidence: Evidence) -> dict[int, Part]:
    """What `vary` did not write, of what it wrote a part of and of named inputs."""
    passes, found = evidence.passes, dict[int, Part]()
    inputs = {storage_of(tensor) for tensor in passes.engine.inputs}
    for tensor in passes.static() if passes.refreshed else ():
        shadow = passes.refreshed.get(storage_of(tensor))
        written = None if shadow is None else shadow.view(tensor)
        if written is not None and not written.all() and (written.any() or storage_of(tensor) in inputs):
            found[len(found)] = Part(tensor, ~written, bool(written.any()))
    return found


def depends(evidence: Evidence, parts: Mapping[int, Part], rows: int | None) -> list[Part]:
    """Those of the parts with which the first rows of the replayed result change, between two patterns or one
    and what is there."""
    passes = evidence.passes

    def result(group: Set[int], which: int) -> dict[object, torch.Tensor]:
        def fill() -> None:
            for n in group:
                put_pattern(parts[n].tensor, parts[n].mask, which)

        first = passes.run(before=fill, writes=[parts[n].tensor for n in group]).results.first()
        return {key: value[:rows] if value.dim() else value for key, value in first.items()}

    def shows(group: Set[int]) -> bool:
        made = [as_it_is]
        for which in PATTERNS:
            with suppress(AuditError):  # it may be an index: the step cannot go on with that
                made.append(result(group, which))
        one, *others = reversed(made)
        return any(is_off(one[key], other[key]) for other in others for key in one.keys() & other.keys())

    parts = {n: part for n, part in parts.items() if part.mask.any()}
    as_it_is = result(set(), 0) if parts else {}
    return responsible(parts, shows)
