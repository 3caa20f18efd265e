"""What a pass leaves behind, and how much two passes are apart in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, ulp
from typing import Any, NamedTuple

import numpy as np
import torch

from mrv2lab.audit import names
from mrv2lab.audit.memory import clone, key_of, pattern, put
from mrv2lab.errors import AuditError

TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2,
    torch.complex128: 1e-9, torch.complex64: 1e-4,
}  # fmt: skip
"""Largest relative error of a row that sums in another order may cause, where nobody has measured what
rounding does in a step; 0 for other types."""

_ROUNDINGS = {torch.float16: 4, torch.bfloat16: 4}  # sums of these are made in single precision
_MOST_ROUNDINGS = 64  # of a long sum in its own precision, in ulps of the result
_MOST = 0.01  # more that rounding explains is no measure: a wrong result would pass too
_BITS = {2: (torch.int16, 7), 4: (torch.int32, 255), 8: (torch.int64, 65535)}  # the last ones of a float

_SMALL_ROW = 0.1  # of the mean norm: below it a row's own norm is no measure
_TOWERS = 1e4  # above the largest element that differs: one that does not is a mask, and no measure either


class Written(NamedTuple):
    """A tensor from outside of a step that a pass wrote, with what it held before and after."""

    tensor: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor


@dataclass
class Results:
    """Copies of what a pass returned and of what it wrote."""

    returned: dict[str, torch.Tensor]  # tensors that the step returned
    written: list[Written]  # tensors from outside of the step that it wrote
    # what it returned beside tensors: numbers, texts, and None
    values: dict[str, Any] = field(default_factory=dict)
    # tensors that it made and left in attributes, gradients too
    left: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was seen of what the device has done."""
        return not (self.returned or self.written or self.left)

    @property
    def made(self) -> dict[str, torch.Tensor]:
        """What the step made, wherever it put it."""
        return self.left | self.returned

    def first(self) -> dict[Any, torch.Tensor]:
        """What the step is there for: what it returns, or else what it writes, or else what it leaves."""
        return self.returned or {key_of(w.tensor): w.after for w in self.written} or self.left


def returned(result: object) -> dict[str, torch.Tensor]:
    """Copies of the tensors in what a step returned; those on `meta` hold nothing."""
    return {path: clone(t) for path, t in names.tensors_of(result) if t.device.type != "meta"}


def values(result: object) -> dict[str, Any]:
    """Numbers and texts in what a step returned, and where it returned None."""
    return {path: value for path, value in names.leaves_of(result) if issubclass(type(value), names.PLAIN)}


def changed(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """A mask of the elements that hold something else now."""
    return (before != after) & ~(before.isnan() & after.isnan())


def mark(tensors: Iterable[torch.Tensor]) -> None:
    """Let tensors hold a pattern that work is not likely to write."""
    with torch.inference_mode():
        for tensor in tensors:
            tensor.fill_(pattern(tensor.dtype, 1))


def lost(marked: Mapping[str, torch.Tensor]) -> list[str]:
    """Those that do not hold the pattern any more."""
    held = {path: clone(tensor) for path, tensor in marked.items()}
    return [path for path, t in held.items() if changed(t, torch.full_like(t, pattern(t.dtype, 1))).any()]


def holding(written: list[Written], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of what tensors held after a pass that wrote these. All is put back."""
    put((tensor, after) for tensor, _, after in written)
    held = [clone(tensor) for tensor in tensors]
    put((tensor, before) for tensor, before, _ in reversed(written))
    return held


def padding_cut(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """A result with more rows than the reference is padded: the reference's rows of it."""
    if value.dim() and value.shape[1:] == reference.shape[1:] and len(value) > len(reference):
        return value[: len(reference)]
    return value


def apart(value: torch.Tensor, reference: torch.Tensor, before: torch.Tensor | None = None) -> float:
    """Largest relative error of a row: norm of the difference over norm of the reference.

    Infinite where shapes, infinities or NaNs differ. What a mask holds, a large number in both, is left out.
    Of memory that held something `before`, the change is the measure, as far as rounding lets it be one:
    large weights hide a step that is small, not its error.
    """
    if value.shape != reference.shape or value.dtype != reference.dtype:
        return inf
    if reference.is_complex():
        value, reference = torch.view_as_real(value), torch.view_as_real(reference)
        before = None if before is None else torch.view_as_real(before)
    equal = ~changed(value, reference)
    if bool(equal.all()):
        return 0.0
    a, b, equal = (_rows(t) for t in (value, reference, equal))
    difference = torch.where(equal.bool(), torch.zeros_like(a), a - b).norm(dim=1)
    if not bool(difference.isfinite().all()):
        return inf
    largest = torch.where(equal.bool(), 0.0, torch.maximum(_finite(a).abs(), _finite(b).abs())).max()
    masks = equal.bool() & (_finite(b).abs() > _TOWERS * largest)
    norms = _finite(b).masked_fill(masks, 0).norm(dim=1)
    if before is not None and (tolerance := TOLERANCE.get(reference.dtype)):
        rounded = min(1.0, 2 * torch.finfo(reference.dtype).eps / tolerance)
        change = _finite(b - _rows(before)).masked_fill(masks, 0).norm(dim=1)
        norms = torch.maximum(change, rounded * norms)
    norms = norms.clamp_min(float(_SMALL_ROW * norms.mean()))
    # Large integers differ, and not in double precision.
    return max(float(torch.where(difference == 0, difference, difference / norms).max()), ulp(1.0))


def is_off(value: torch.Tensor, reference: torch.Tensor, before: torch.Tensor | None = None) -> float:
    """As `apart`, and 0 where rounding explains the difference."""
    error = apart(value, reference, before)
    return error if error > TOLERANCE.get(reference.dtype, 0.0) else 0.0


def nudge(tensor: torch.Tensor, inputs: Iterable[torch.Tensor] = ()) -> None:
    """Move each element by one ulp, up or down as its bits fall. What ends in zeros stays, for it is exact;
    what stands in `inputs` too: it was selected or copied.
    """
    as_integer, last = _BITS.get(tensor.itemsize, (torch.int8, 0))
    if last and tensor.is_floating_point() and not torch._debug_has_internal_overlap(tensor):
        whole = tensor.view(as_integer)
        rounded = (whole & last).ne(0)
        for other in inputs:
            if other.dtype == tensor.dtype and other.layout is torch.strided:
                rounded &= torch.isin(whole.contiguous(), other.contiguous().view(as_integer), invert=True)
        whole.bitwise_xor_(rounded.to(as_integer))


def agree(a: Results, b: Results) -> bool:
    """The same results, up to rounding: atomic additions come in another order each time. What is left in a
    list lies elsewhere each time; what is returned does not."""
    one, other = a.first(), b.first()
    if a.returned.keys() != b.returned.keys():
        return False
    return not any(is_off(one[name], other[name]) for name in one.keys() & other.keys())


def unlike(a: Results, b: Results) -> set[str]:
    """Where two passes returned a tensor and none, or numbers or texts that differ."""
    values = {path for path in a.values.keys() & b.values.keys() if _alike(a.values[path], b.values[path])}
    return (a.returned.keys() ^ b.returned.keys()) | ((a.values.keys() | b.values.keys()) - values)


def elsewhere(run: Results, eager: Results, again: Results) -> set[str]:
    """What each eager pass leaves under names that the run does not, if it leaves something else instead.

    What an eager pass alone leaves may stand since the warm-up: a workspace that is made when it is missing.
    """
    missing = (eager.left.keys() & again.left.keys()) - run.left.keys()
    return set(missing) if run.left.keys() - eager.left.keys() else set()


class Contents(NamedTuple):
    """What a tensor that the passes made or wrote holds: after the run, after the eager pass, before both
    (None if they made it), and after the eager pass again (None if that did not touch it).
    """

    of: Any  # the name of what was made, or the key of memory that was written
    tensor: torch.Tensor | None  # that memory
    is_main: bool  # it is what the step is there for
    run: torch.Tensor
    eager: torch.Tensor
    before: torch.Tensor | None
    again: torch.Tensor | None


@dataclass(frozen=True)
class Comparison:
    """A run beside two eager passes at the same inputs."""

    run: Results
    eager: Results
    again: Results
    # the step was captured itself. An engine pads its batches, and its graphs write rows that nobody reads.
    is_one: bool
    name_of: Callable[[torch.Tensor], str | None]  # what the step calls a tensor, if anything
    # an eager pass in which the result of each op is moved by one ulp, made where a result is off by little
    nudged: Callable[[], Results] | None = None
    sensitive: dict[str, float] = field(default_factory=dict)  # what one ulp moves too far to measure by
    excused: list[float] = field(default_factory=list)  # errors that rounding explains
    # those of them that it explains only because one ulp moves these results more than it usually does
    doubtful: dict[str, float] = field(default_factory=dict)

    @property
    def written(self) -> list[Written]:
        """What the run and the eager pass have written."""
        return [*self.run.written, *self.eager.written]

    def differs(self, is_exact: bool) -> dict[str, float]:
        """What the run got wrong: returned values, and elements that the eager pass wrote otherwise.

        What two eager passes do not agree about, like a count of calls, is no result. Where the run did the
        very work of the eager pass, `is_exact`, rounding explains nothing.
        """
        off: dict[str, float] = {}
        for seen in self._contents():
            twin = seen.again
            is_known = twin is not None and twin.shape == seen.eager.shape
            if twin is not None and is_known and not seen.is_main and is_off(twin, seen.eager, seen.before):
                continue
            same_bits = is_exact and twin is not None and is_known and not apart(twin, seen.eager)
            error = apart(seen.run, seen.eager, seen.before)
            if error and (same_bits or error == inf or error > self._rounding(seen)):
                off[self._label(seen)] = error
            elif error:
                self.excused.append(error)
                if error > TOLERANCE.get(seen.eager.dtype, 0.0):
                    self.doubtful[self._label(seen)] = error
        if self.is_one:
            other = unlike(self.run, self.eager) - unlike(self.eager, self.again)
            other |= elsewhere(self.run, self.eager, self.again)
            off |= dict.fromkeys(sorted(other), inf)
        return off

    def _rounding(self, seen: Contents) -> float:
        """What rounding explains: so many times what moves a result if each op's is moved by one ulp.

        Or what chance does from one eager pass to the next, if that is no more. What is added to memory is
        rounded as that is, so there no less is explained than where nobody has measured; no more either where
        one ulp moves a result far.
        """
        dtype, tolerance = seen.eager.dtype, TOLERANCE.get(seen.eager.dtype, 0.0)
        chance = inf if seen.again is None else apart(seen.again, seen.eager, seen.before)
        if chance > tolerance:
            return tolerance
        moved = max(chance, apart(self._nudged.get(seen.of, seen.eager), seen.eager, seen.before))
        least = torch.finfo(dtype).eps if tolerance else 0.0
        explained = _ROUNDINGS.get(dtype, _MOST_ROUNDINGS) * max(moved, least)
        if explained > max(_MOST, tolerance):
            self.sensitive[self._label(seen)] = moved
            return tolerance
        return explained if seen.before is None else max(explained, tolerance)

    @cached_property
    def _nudged(self) -> dict[Any, torch.Tensor]:
        try:
            moved = self.nudged() if self.nudged else self.eager
        except AuditError:  # the step raises if it is moved
            moved = self.eager
        other = replace(self, run=moved, nudged=None)
        return {seen.of: seen.run for seen in other._contents()}

    def _contents(self) -> Iterator[Contents]:
        """What the passes made; then memory that the eager pass writes, and of a step that was captured
        itself what its graphs write.
        """
        run, eager, again = self.run, self.eager, self.again
        main, others = eager.first(), list[Written]()
        for path, reference in eager.made.items():
            if path in run.made:
                value = run.made[path] if self.is_one else padding_cut(run.made[path], reference)
                yield Contents(path, None, path in main, value, reference, None, again.made.get(path))
        if self.is_one:
            seen = {key_of(written.tensor) for written in eager.written}
            beside = [written for written in run.written if key_of(written.tensor) not in seen]
            # What nobody can name is scratch memory of a library: nobody reads it.
            others = [written for written in beside if self.name_of(written.tensor)]
        tensors = [written.tensor for written in (*eager.written, *others)]
        references = [w.after for w in eager.written] + holding(eager.written, [w.tensor for w in others])
        before = [written.before for written in (*eager.written, *others)]
        twins = {key_of(written.tensor): written.after for written in again.written}
        for tensor, *held in zip(tensors, holding(run.written, tensors), references, before, strict=True):
            key = key_of(tensor)
            contents: list[Any] = [*held, twins.get(key)]
            if not self.is_one:  # rows behind the batch are nobody's; a step captured itself has none
                mine = changed(contents[2], contents[1])
                contents = [None if content is None else content[mine] for content in contents]
            yield Contents(key, tensor, key in main, *contents)

    def _label(self, seen: Contents) -> str:
        if seen.tensor is None:
            return str(seen.of)
        return self.name_of(seen.tensor) or f"a tensor of shape {[*seen.tensor.shape]} that the step writes"


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return repr(a) == repr(b) or (type(a) is type(b) and a == b)


def _finite(rows: torch.Tensor) -> torch.Tensor:
    return rows.nan_to_num(0.0, 0.0, 0.0)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision, [rows, elements of a row]."""
    return tensor.double().reshape(len(tensor) if tensor.dim() > 1 else 1, -1)
