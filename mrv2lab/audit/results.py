"""What a pass leaves behind, and how much two passes are apart in it."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from mrv2lab.audit import names
from mrv2lab.audit.memory import clone

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Largest relative error of a row that sums in another order may cause; 0 for other types."""

_SMALL_ROW = 0.1  # of the mean norm: below it a row's own norm is no measure


class Written(NamedTuple):
    """A tensor from outside of a step that a pass wrote, with what it held before and after.

    Attributes:
        is_whole: every element was written, if only with what it held.
    """

    tensor: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    is_whole: bool

    @property
    def changed(self) -> torch.Tensor:
        """A mask of the elements that hold something else now."""
        return (self.before != self.after) & ~(self.before.isnan() & self.after.isnan())

    @property
    def touched(self) -> torch.Tensor:
        """A mask of the elements that were written, as far as one can tell."""
        return torch.ones_like(self.changed) if self.is_whole else self.changed


@dataclass
class Results:
    """Copies of what a pass returned and of what it wrote.

    Attributes:
        returned: tensors that the step returned, or, if it returns none, those it left in attributes.
        written: tensors from outside of the step that it wrote.
        numbers: what it returned beside tensors: numbers, and None.
    """

    returned: dict[str, torch.Tensor]
    written: list[Written]
    numbers: dict[str, float | None] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was seen of what the device has done."""
        return not (self.returned or self.written)

    def first(self) -> dict[str, torch.Tensor]:
        """What the step is there for: what it returns, or what it writes."""
        if self.returned:
            return self.returned
        return {f"written tensor {i}": written.after for i, written in enumerate(self.written)}


def returned(result: object) -> dict[str, torch.Tensor]:
    """Copies of the tensors in what a step returned; those on `meta` hold nothing."""
    return {path: clone(t) for path, t in names.tensors_of(result) if t.device.type != "meta"}


def numbers(result: object) -> dict[str, float | None]:
    """Numbers of Python's in what a step returned, and where it returned None."""
    return {path: value for path, value in names.leaves_of(result) if isinstance(value, int | float | None)}


def apart(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest relative error of a row: norm of the difference over norm of the reference.

    Infinite where shapes, infinities or NaNs differ. A value with more rows than the reference is padded:
    only the reference's rows count.
    """
    if value.dim() and value.shape[1:] == reference.shape[1:] and len(value) > len(reference):
        value = value[: len(reference)]
    if value.shape != reference.shape or value.dtype != reference.dtype:
        return float("inf")
    if not value.numel():
        return 0.0
    a, b = (_rows(t) for t in (value, reference))
    equal = (a == b) | (a.isnan() & b.isnan())
    if bool(equal.all()):
        return 0.0
    difference = torch.where(equal, torch.zeros_like(a), a - b).norm(dim=1)
    if not bool(difference.isfinite().all()):
        return float("inf")
    norms = torch.where(b.isfinite(), b, torch.zeros_like(b)).norm(dim=1)
    norms = norms.clamp_min(float(_SMALL_ROW * norms.mean()))
    return float(torch.where(difference == 0, difference, difference / norms).max())


def is_off(value: torch.Tensor, reference: torch.Tensor) -> float:
    """As `apart`, and 0 where rounding explains the difference."""
    error = apart(value, reference)
    return error if error > TOLERANCE.get(reference.dtype, 0.0) else 0.0


def agree(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """The same results, up to rounding: atomic additions come in another order each time."""
    return a.keys() == b.keys() and not any(is_off(a[name], b[name]) for name in a)


def unlike(a: Results, b: Results) -> list[str]:
    """Where two passes returned a tensor and none, or numbers that differ."""
    parts = a.returned.keys() ^ b.returned.keys()
    both = a.numbers.keys() & b.numbers.keys()
    same = {path for path in both if repr(a.numbers[path]) == repr(b.numbers[path])}
    return sorted(parts | (a.numbers.keys() | b.numbers.keys()) - same)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision, [rows, elements of a row]."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.double().reshape(len(real) if real.dim() > 1 else 1, -1)
