"""What a pass leaves behind, and how much two passes are apart in it."""

from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import torch

from mrv2lab.audit import names
from mrv2lab.audit.memory import clone

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""Largest relative error of a row that sums in another order may cause; 0 for other types."""

_SMALL_ROW = 0.1  # of the mean norm: below it a row's own norm is no measure
_ULPS = 16  # by which the emulator's kernels may round otherwise, on memory that is aligned otherwise
_PLAIN = (int, float, complex, str, bytes, type(None))


class Written(NamedTuple):
    """A tensor from outside of a step that a pass wrote, with what it held before and after."""

    tensor: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor


@dataclass
class Results:
    """Copies of what a pass returned and of what it wrote.

    Attributes:
        returned: tensors that the step returned, or, if it returns none, those it left in attributes.
        written: tensors from outside of the step that it wrote.
        values: what it returned beside tensors: numbers, texts, and None.
        left: tensors that it made and left in attributes, gradients too.
    """

    returned: dict[str, torch.Tensor]
    written: list[Written]
    values: dict[str, Any] = field(default_factory=dict)
    left: dict[str, torch.Tensor] = field(default_factory=dict)

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


def values(result: object) -> dict[str, Any]:
    """Numbers and texts in what a step returned, and where it returned None."""
    return {path: value for path, value in names.leaves_of(result) if isinstance(value, _PLAIN)}


def changed(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """A mask of the elements that hold something else now."""
    return (before != after) & ~(before.isnan() & after.isnan())


def holding(written: list[Written], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of what tensors held after a pass that wrote these. All is put back."""
    with torch.inference_mode():
        for tensor, _, after in written:
            tensor.copy_(after)
        held = [clone(tensor) for tensor in tensors]
        for tensor, before, _ in reversed(written):
            tensor.copy_(before)
    return held


def padding_cut(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """A result with more rows than the reference is padded: the reference's rows of it."""
    if value.dim() and value.shape[1:] == reference.shape[1:] and len(value) > len(reference):
        return value[: len(reference)]
    return value


def apart(value: torch.Tensor, reference: torch.Tensor, before: torch.Tensor | None = None) -> float:
    """Largest relative error of a row: norm of the difference over norm of the reference.

    Infinite where shapes, infinities or NaNs differ. Of memory that held something `before`, the change is
    the measure, as far as rounding lets it be one: large weights hide a step that is small, not its error.
    """
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
    norms = _finite(b).norm(dim=1)
    if before is not None and (tolerance := TOLERANCE.get(reference.dtype)):
        rounded = min(1.0, 2 * torch.finfo(reference.dtype).eps / tolerance)
        norms = torch.maximum(_finite(b - _rows(before)).norm(dim=1), rounded * norms)
    norms = norms.clamp_min(float(_SMALL_ROW * norms.mean()))
    return float(torch.where(difference == 0, difference, difference / norms).max())


def is_off(
    value: torch.Tensor,
    reference: torch.Tensor,
    before: torch.Tensor | None = None,
    *,
    same_kernels: bool = False,
) -> float:
    """As `apart`, and 0 where rounding explains the difference.

    Args:
        same_kernels: the same kernels ran in the same order, on the CPU: each element counts.
    """
    error = apart(value, reference, before)
    if same_kernels and 0 < error < inf:
        return error if _off_by_ulps(value, reference) else 0.0
    return error if error > TOLERANCE.get(reference.dtype, 0.0) else 0.0


def _off_by_ulps(value: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether an element differs by more than a few units in the last place of its row's largest."""
    if not reference.dtype.is_floating_point:
        return True
    a, b = (_finite(_rows(t)) for t in (value, reference))
    most = _ULPS * torch.finfo(reference.dtype).eps * b.abs().amax(dim=1, keepdim=True)
    return bool(((a - b).abs() > most).any())


def agree(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """The same results, up to rounding: atomic additions come in another order each time."""
    return a.keys() == b.keys() and not any(is_off(a[name], b[name]) for name in a)


def unlike(a: Results, b: Results) -> list[str]:
    """Where two passes returned a tensor and none, or numbers or texts that differ."""
    parts = a.returned.keys() ^ b.returned.keys()
    both = a.values.keys() & b.values.keys()
    same = {path for path in both if repr(a.values[path]) == repr(b.values[path])}
    return sorted(parts | (a.values.keys() | b.values.keys()) - same)


def _finite(rows: torch.Tensor) -> torch.Tensor:
    return torch.where(rows.isfinite(), rows, torch.zeros_like(rows))


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision, [rows, elements of a row]."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.double().reshape(len(real) if real.dim() > 1 else 1, -1)
