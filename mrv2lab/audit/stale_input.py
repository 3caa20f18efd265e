"""stale-input: an input that nobody has refreshed for this step, and that its result depends on."""

from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import clone, is_integer, known_numbers, put_pattern, storage_of, writable
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


def find(evidence: Evidence) -> Findings:
    """Asked of the inputs that are named: what `vary` left of them as it was is given two patterns."""
    rows = evidence.passes.num_rows
    for part in depends(evidence, dict(enumerate(_not_refreshed(evidence, rows))), rows):
        some = "some of it" if part.is_partly else "none of it"
        text = f"the result changes with what it holds, and `vary` has written {some} for this step"
        at, place = evidence.user(part.tensor)
        yield at, Finding(KIND, evidence.view_called(part.tensor), text, place)


def _not_refreshed(evidence: Evidence, rows: int | None) -> Iterator[Part]:
    """What `vary` did not write, of the real rows of named inputs."""
    passes = evidence.passes
    reached = {storage_of(tensor) for _, tensor in evidence.named}  # the others `vary` has bound anew
    for tensor in writable(filter(passes.session.on_device, passes.engine.inputs)):
        shadow = passes.refreshed.get(storage_of(tensor)) if storage_of(tensor) in reached else None
        if shadow is not None and (written := shadow.view(tensor)) is not None:
            mask = np.array(~written)
            if mask.ndim and rows is not None and len(tensor) in (passes.row_counts - {1} or {len(tensor)}):
                mask[rows:] = False  # padding; what is as long as something else has no such rows
            yield Part(tensor, mask, bool(written.any()))


def unasked(evidence: Evidence) -> Iterator[str]:
    """Words for named inputs of which nothing could be asked."""
    reached = {storage_of(tensor) for _, tensor in evidence.named}
    for tensor in filter(evidence.session.on_device, evidence.passes.engine.inputs):
        if tensor.numel() and storage_of(tensor) not in reached:
            called = f"an input of shape {list(tensor.shape)}"
            yield f"{called} is nothing that the step reaches now, so it was not asked who refreshes it"
    for part in _not_refreshed(evidence, evidence.passes.num_rows):
        yield from of_zeros(evidence, part)


def of_zeros(evidence: Evidence, part: Part) -> Iterator[str]:
    """Words for integers of which no other number is known that may stand there."""
    if part.is_partly and part.mask.any() and is_integer(part.tensor):
        held = clone(part.tensor).numpy()
        if not any(((held != known) & part.mask).any() for known in known_numbers(held)):
            name = evidence.view_called(part.tensor)
            yield f"{name} holds zeros there, and may be an index: what another number does was not asked"


def depends(
    evidence: Evidence, parts: Mapping[int, Part], rows: int | None, *, are_real: bool = True
) -> list[Part]:
    """Those of the parts with which the first rows of the replayed result change, between two patterns or one
    and what is there. Where nobody knows which rows those are, all count if the parts `are_real`."""
    passes = evidence.passes

    def result(group: Set[int], which: int) -> dict[object, torch.Tensor]:
        def fill() -> None:
            for n in group:
                put_pattern(parts[n].tensor, parts[n].mask, which, is_known=parts[n].is_partly)

        results = passes.run(before=fill, writes=[parts[n].tensor for n in group]).results
        first = results.first()
        if rows is not None and not results.returned:
            made = rows_of(first, sizes)
            if not made and are_real:
                return first
            first = made
        return {key: value[:rows] if value.dim() else value for key, value in first.items()}

    def shows(group: Set[int]) -> bool:
        made = [as_it_is]
        for which in PATTERNS:
            with suppress(AuditError):  # it may be an index: the step cannot go on with that
                made.append(result(group, which))
        one, *others = reversed(made)
        return any(is_off(one[key], other[key]) for other in others for key in one.keys() & other.keys())

    parts = {n: part for n, part in parts.items() if part.mask.any()}
    sizes = {len(part.tensor) for part in parts.values() if part.tensor.dim()}
    as_it_is = result(set(), 0) if parts else {}
    return responsible(parts, shows)


def rows_of(written: Mapping[Any, torch.Tensor], sizes: Set[int]) -> dict[Any, torch.Tensor]:
    """Of what a step has written instead of returning it what has so many rows, with what is one for all.
    What is as long as something else are slots or blocks: nobody knows which of them are real."""
    return {key: one for key, one in written.items() if not one.dim() or len(one) in {1, *sizes}}
