"""What a pass leaves behind, and how much two passes are apart in it."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from math import inf, sqrt, ulp
from typing import Any, NamedTuple

import numpy as np
import torch

from mrv2lab.audit import names
from mrv2lab.audit.memory import as_bytes, clone, key_of, pattern, put, storage_of
from mrv2lab.errors import AuditError

TOLERANCE = {
    torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 2e-2,
    torch.complex128: 1e-9, torch.complex64: 1e-4,
}  # fmt: skip
"""Largest relative error of a row that sums in another order may cause, where nobody has measured what
rounding does in a step; 0 for other types."""

_HALVES = frozenset({torch.float16, torch.bfloat16})
# Sums of these are made in single precision: what is rounded otherwise then is less than half of an ulp in
# each op, and steps that sum in other parts were seen to be at most half as far apart as one ulp moves them.
_ROUNDINGS = 1.5
_MOST_ROUNDINGS = 64  # of a long sum in its own precision, in ulps of the result
_FEW_ROUNDINGS = 4  # where the same kernels run on the same memory, with other numbers
_FEW = 16  # so few numbers may by chance come out where they were
_MOST = 0.01  # more that rounding explains is no measure: a wrong result would pass too
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_SOME = {2: 3, 4: 63, 8: 63}  # the bits that a few roundings may move: neighbours change places
_LAST = {2: 7, 4: 255, 8: 65535}  # the last bits of a float: zero in one that nobody has rounded

_SMALL = 0.1  # of the mean norm, or number: below it a row's own norm, or a number, is no measure
_TOWERS = 1e4  # above the largest element that differs: one that does not is a mask, and no measure either
_STANDS = 100  # the same where one ulp of everything does not move it


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
    closed: Sequence[str] = ()  # what it returned that cannot be looked into
    again: Mapping[str, str] = field(default_factory=dict)  # where an object came again: its path at first
    lie_in: set[int] = field(default_factory=set)  # memory that what an engine returned is a part of

    def know(self, *others: "Results") -> None:
        """What others have by a path of their own, and this one as part of an object that came again, has
        that path here too: a pass may bind anew what two places of a result shared."""
        tensors, plain = [one.returned for one in others], [one.values for one in others]
        of_both: list[tuple[dict[str, Any], list[Any]]] = [(self.returned, tensors), (self.values, plain)]
        for mine, theirs in of_both if self.again else ():
            for path in {path for one in theirs for path in one if path not in mine}:
                if (at := self._at_first(path)) in mine:
                    mine[path] = mine[at]

    def _at_first(self, path: str) -> str:
        ends = [i for i, c in enumerate(path) if c in ".["] + [len(path)]
        known = (end for end in reversed(ends) if path[:end] in self.again)
        return next((self.again[path[:end]] + path[end:] for end in known), path)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was seen of what the device has done."""
        return not (self.returned or self.written or self.left)

    @property
    def made(self) -> dict[str, torch.Tensor]:
        """What the step made, wherever it put it."""
        return self.left | self.returned

    @property
    def named(self) -> set[str]:
        return self.made.keys() | self.values.keys()

    @property
    def is_never_finite(self) -> bool:
        """Whether there are numbers, and all are NaN or infinite: what is compared then is nothing."""
        made = [one for one in (*self.made.values(), *(w.after for w in self.written)) if one.numel()]
        return bool(made) and not any(one.isfinite().any() for one in made)

    def is_same(self, other: "Results") -> bool:
        """Whether both are the same to the last bit."""
        self.know(other)
        other.know(self)
        values = self.values.keys() == other.values.keys() and not unlike(self, other)
        one, two = (r.made | {key_of(w.tensor): w.after for w in r.written} for r in (self, other))
        return values and one.keys() == two.keys() and not any(apart(one[name], two[name]) for name in one)

    def first(self) -> dict[Any, torch.Tensor]:
        """What the step is there for: what it returns, or else what it writes, or else what it leaves."""
        return self.returned or {key_of(w.tensor): w.after for w in self.written} or self.left


def returned(result: object, again: dict[str, str] | None = None) -> dict[str, torch.Tensor]:
    """Copies of the tensors in what a step returned; those on `meta` hold nothing."""
    return {path: clone(t) for path, t in names.tensors_of(result, again) if t.device.type != "meta"}


def values(result: object) -> dict[str, Any]:
    """Numbers and texts in what a step returned, and where it returned None."""
    found = ((path, one) for path, one in names.leaves_of(result) if issubclass(type(one), names.PLAIN))
    return {path: one for path, one in found if not _is_closed(one)}


def closed(result: object) -> list[str]:
    """What a step returned and nobody looks into: to look into an iterator would use it up, and a set of
    objects has another order each time."""
    return [f"{path} (a {type(one).__name__})" for path, one in names.leaves_of(result) if _is_closed(one)]


def _is_closed(value: Any) -> bool:
    if issubclass(type(value), set | frozenset):
        return not all(issubclass(type(one), (*names.PLAIN, tuple)) for one in value)
    return issubclass(type(value), Iterator)


def changed(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """A mask of the elements that hold something else now."""
    return (before != after) & ~(before.isnan() & after.isnan())


def mark(tensors: Iterable[torch.Tensor], which: int = 1) -> None:
    """Let tensors hold a pattern. Work may write the very same integers, and not those of two patterns."""
    with torch.inference_mode():
        for tensor in tensors:
            tensor.fill_(pattern(tensor.dtype, which))


def lost(marked: Mapping[str, torch.Tensor], which: int = 1) -> dict[str, torch.Tensor]:
    """Those that do not hold the pattern any more: where they do not."""
    held = {path: clone(tensor) for path, tensor in marked.items()}
    off = {path: changed(t, torch.full_like(t, pattern(t.dtype, which))) for path, t in held.items()}
    return {path: mask for path, mask in off.items() if mask.any()}


def holding(written: list[Written], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of what tensors held after a pass that wrote these. All is put back. What the pass wrote, a KV
    cache above all, is not copied once more."""
    known = {key_of(one.tensor): one.after for one in written}
    held = {key: known.get(key) for key in map(key_of, tensors)}
    if any(content is None for content in held.values()):
        put((tensor, after) for tensor, _, after in written)
        held |= {key_of(t): clone(t) for t in tensors if held[key_of(t)] is None}
        put((tensor, before) for tensor, before, _ in reversed(written))
    return [content for key in map(key_of, tensors) if (content := held[key]) is not None]


def padding_cut(value: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """A result with more rows than the reference is padded: the reference's rows of it."""
    if value.dim() and value.shape[1:] == reference.shape[1:] and len(value) > len(reference):
        return value[: len(reference)]
    return value


def apart(
    value: torch.Tensor,
    reference: torch.Tensor,
    before: torch.Tensor | None = None,
    *,
    by_element: bool = False,
    beside: Sequence[torch.Tensor] = (),
) -> float:
    """Largest relative error of a row: norm of the difference over norm of the reference.

    Infinite where shapes, infinities or NaNs differ. What a mask holds, a large number in both, is left out;
    where others are given, one in all of those `beside`. Of memory that held something `before`, the change
    is the measure, as far as rounding lets it be one: large weights hide a step that is small, not its error.
    Or else `by_element`, the largest relative error of a number that is not small in its row: one that is
    wrong among thousands does not move a norm.
    """
    if value.shape != reference.shape or value.dtype != reference.dtype:
        return inf
    if reference.is_complex():
        value, reference = torch.view_as_real(value), torch.view_as_real(reference)
        before = None if before is None else torch.view_as_real(before)
        beside = [*map(torch.view_as_real, beside)]
    if not bool((differ := changed(value, reference)).any()):
        return 0.0
    masks = _masks(beside or (value,), reference)
    a, b, differ = _rows(value), _rows(reference), _rows(differ).bool()
    difference = torch.where(differ & ~masks, a - b, 0.0)
    if not bool(difference.isfinite().all()):
        return inf
    measure: Callable[[torch.Tensor], torch.Tensor] = torch.abs if by_element else partial(torch.norm, dim=1)
    difference, norms = measure(difference), measure(_finite(b).masked_fill(masks, 0))
    if before is not None and (tolerance := TOLERANCE.get(reference.dtype)):
        rounded = min(1.0, 2 * torch.finfo(reference.dtype).eps / tolerance)
        change = measure(_finite(b - _rows(before)).masked_fill(masks, 0))
        norms = torch.maximum(change, rounded * norms)
    norms = norms.clamp_min(float(_SMALL * norms.mean()))
    # Large integers differ, and not in double precision.
    return max(float(torch.where(difference == 0, difference, difference / norms).max()), ulp(1.0))


def _masks(values: Sequence[torch.Tensor], reference: torch.Tensor) -> torch.Tensor:
    """Which numbers, in rows, are the same large one everywhere."""
    a, b = (_finite(_rows(t)).abs() for t in (values[0], reference))
    differ = _rows(functools.reduce(torch.logical_or, (changed(v, reference) for v in values))).bool()
    largest = torch.where(differ, torch.maximum(a, b), 0.0).max()
    return ~differ & (b > (_TOWERS if len(values) == 1 else _STANDS) * largest)


def is_off(value: torch.Tensor, reference: torch.Tensor, before: torch.Tensor | None = None) -> float:
    """As `apart`, and 0 where rounding explains the difference."""
    error = apart(value, reference, before)
    return error if error > TOLERANCE.get(reference.dtype, 0.0) else 0.0


def nudge(tensor: torch.Tensor, inputs: Any = (), numbers: Any = (), *, by_some: bool = False) -> None:
    """Move each element by one ulp, or by some, up or down as its bits fall. What ends in zeros
    stays, for it is exact; what stands in `inputs` or among `numbers` too: it was selected or copied.
    """
    if (bits := _bits(tensor)) is not None and not torch._debug_has_internal_overlap(tensor):
        rounded = (bits & _LAST[bits.itemsize]).ne(0)
        for other in (*inputs, *(tensor.new_tensor([n]) for n in numbers if type(n) in (int, float))):
            if other.dtype == tensor.dtype and (held := _bits(other)) is not None:
                rounded &= torch.isin(bits.contiguous(), held.contiguous(), invert=True)
        bits.bitwise_xor_(rounded.to(bits.dtype) * (_SOME[bits.itemsize] if by_some else 1))


def one_ulp_off(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in which each number but zero, if it is a float, is its neighbour."""
    moved = tensor.clone(memory_format=torch.contiguous_format).resolve_conj()
    if (bits := _bits(moved)) is not None:
        numbers = torch.view_as_real(moved) if moved.is_complex() else moved
        bits.bitwise_xor_((numbers.isfinite() & numbers.ne(0)).to(bits.dtype))  # a zero is exact
    return moved


def _bits(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same memory as integers; None of what is not made of floats of two bytes or more."""
    if tensor.layout is not torch.strided or tensor.is_conj():
        return None
    floats = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    as_integer = _INTEGERS.get(floats.itemsize)
    return floats.view(as_integer) if as_integer and floats.is_floating_point() else None


def agree(a: Results, b: Results, rounded: float = 0.0) -> bool:
    """The same results, up to rounding, or what is known to be `rounded`: atomic additions come in another
    order each time. What is left in a list lies elsewhere each time; what is returned does not."""
    a.know(b)
    b.know(a)
    one, other = a.first(), b.first()
    if a.returned.keys() != b.returned.keys():
        return False
    return not any(is_off(one[name], other[name]) > rounded for name in one.keys() & other.keys())


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
    # an eager pass in which what ops make of some types is moved by one ulp, and those that they made, asked
    # where a result is off by little
    nudged: Callable[..., tuple[Results, Set[torch.dtype]]] | None = None
    # what one ulp moves as far as the run is off, and too far to measure by
    sensitive: dict[str, float] = field(default_factory=dict)
    excused: list[float] = field(default_factory=list)  # errors that rounding explains
    # those of them that it explains only because one ulp moves these results more than it usually does
    doubtful: dict[str, float] = field(default_factory=dict)
    unsettled: list[torch.Tensor] = field(default_factory=list)  # where each pass has written something else
    off_at: dict[str, torch.Tensor] = field(default_factory=dict)  # memory that was written otherwise
    # whether what has no name, and the run alone writes, is nobody's result
    is_scratch: Callable[[torch.Tensor], bool] = lambda tensor: True
    _types: set[torch.dtype] = field(default_factory=set)  # that the ops of the step make, if that was asked

    def __post_init__(self) -> None:
        three = self.run, self.eager, self.again
        for one in three:
            one.know(*three)

    @property
    def written(self) -> list[Written]:
        """What the run and the eager pass have written."""
        return [*self.run.written, *self.eager.written]

    def differs(self, is_exact: bool, of_numbers: bool = False) -> dict[str, float]:
        """What the run got wrong: returned values, and elements that the eager pass wrote otherwise.

        What two eager passes do not agree about, like a count of calls, is no result. Where the run did the
        very work of the eager pass, `is_exact`, rounding explains nothing; with other numbers, `of_numbers`,
        as little as was measured here: a factor that cancels again leaves no more.
        """
        off: dict[str, float] = {}
        for seen in self._contents():
            twin = seen.again
            is_known = twin is not None and twin.shape == seen.eager.shape
            if twin is not None and is_known and not seen.is_main and is_off(twin, seen.eager, seen.before):
                if seen.tensor is not None and apart(seen.run, seen.eager):
                    self.unsettled.append(seen.tensor)
                continue
            same_bits = is_exact and twin is not None and is_known and not apart(twin, seen.eager)
            error, count = apart(seen.run, seen.eager, seen.before), len(off)
            if 0 < error < inf and same_bits and of_numbers:
                same_bits = seen.of not in self._nudged or error > self._explained(seen, times=_FEW_ROUNDINGS)
            if error and (same_bits or error == inf or not self._is_rounding(seen, error)):
                off[self._label(seen)] = error
            elif error and (one := self._stands_out(seen)):
                off[self._label(seen)] = one
            elif error:
                self.excused.append(error)
                if error > self._tolerance(seen):
                    self.doubtful[self._label(seen)] = error
            if seen.tensor is not None and len(off) > count:
                self.off_at[self._label(seen)] = seen.tensor
        if self.is_one:
            other = unlike(self.run, self.eager) - unlike(self.eager, self.again)
            other |= elsewhere(self.run, self.eager, self.again)
            off |= dict.fromkeys(sorted(other), inf)
        return off

    def _is_rounding(self, seen: Contents, error: float) -> bool:
        """Whether rounding explains the error of a row. It explains no more than where nobody has measured,
        if one ulp moves a result far, or if chance does from one eager pass to the next."""
        tolerance = most = TOLERANCE.get(seen.eager.dtype, 0.0)
        if seen.again is not None and apart(seen.again, seen.eager, seen.before) <= tolerance:
            most = self._explained(seen)
            if most > max(_MOST, tolerance := self._tolerance(seen)):
                if tolerance < error <= most:
                    is_half = seen.eager.dtype in _HALVES or self._is_of_halves(seen)
                    self.sensitive[self._label(seen)] = most / _roundings(seen.eager, is_half)
                most = tolerance
        return error <= most

    def _stands_out(self, seen: Contents) -> float:
        """The error of a number, or of a row without what no ulp moves, that is further off than rounding
        explains of any; 0: there is none."""
        if seen.eager.dtype not in TOLERANCE or seen.of not in self._nudged:
            return 0.0
        beside = seen.run, self._nudged[seen.of]
        for by_element in (True, False):
            error = apart(seen.run, seen.eager, seen.before, by_element=by_element, beside=beside)
            if error > self._explained(seen, by_element=by_element, beside=beside):
                return error
        return 0.0

    def _explained(
        self,
        seen: Contents,
        *,
        by_element: bool = False,
        beside: Sequence[torch.Tensor] = (),
        times: float | None = None,
    ) -> float:
        """So many times what moves a result if that of each op is moved by one ulp; or what chance does from
        one eager pass to the next, or one ulp of the result, if that is more."""

        if seen.of not in self._nudged:
            return TOLERANCE.get(seen.eager.dtype, 0.0)

        def error(other: torch.Tensor, before: torch.Tensor | None = seen.before) -> float:
            return apart(other, seen.eager, before, by_element=by_element, beside=beside or (seen.run,))

        by_one = one_ulp_off(seen.eager)
        least = max(0.0 if seen.again is None else error(seen.again), error(by_one, None))
        # What is added to memory is rounded as that is, and once: that part of what moved it counts once too.
        ulps = 0.0 if seen.before is None else error(by_one)

        def explained(nudged: Mapping[Any, torch.Tensor], is_half: bool) -> float:
            moved = sqrt(max(0.0, error(nudged[seen.of]) ** 2 - ulps**2))
            return (times or _roundings(seen.eager, is_half)) * max(moved, least)

        if self._is_of_halves(seen):  # and each counts as it is rounded
            return explained(self._nudged, True) + explained(self._nudged_alone, False) + 2 * ulps
        return explained(self._nudged, seen.eager.dtype in _HALVES) + 2 * ulps

    def _tolerance(self, seen: Contents) -> float:
        """What is rounding where nobody could measure it."""
        halves = self._types & _HALVES if self._is_of_halves(seen) else ()
        return max(TOLERANCE.get(dtype, 0.0) for dtype in (seen.eager.dtype, *halves))

    def _is_of_halves(self, seen: Contents) -> bool:
        """Whether a result in single precision is made of what is rounded in half precision."""
        if seen.eager.dtype in _HALVES or not self._types & _HALVES or seen.of not in self._nudged_alone:
            return False
        moved, alone = (apart(n[seen.of], seen.eager) for n in (self._nudged, self._nudged_alone))
        return moved > alone

    @cached_property
    def _nudged(self) -> dict[Any, torch.Tensor]:
        return self._if_nudged(TOLERANCE.keys())

    @cached_property
    def _nudged_alone(self) -> dict[Any, torch.Tensor]:
        """Without what is rounded in half precision."""
        return self._if_nudged(TOLERANCE.keys() - _HALVES)

    def moved_as_far(self, off: Mapping[str, float]) -> dict[str, float]:
        """Those of wrong results that some ulps in each op move as far, and out of proportion to one: what is
        rounded to few values, or chosen by, gives way all at once."""
        is_asked = any(error < inf for error in off.values())
        some, found = self._if_nudged(TOLERANCE.keys(), by_some=True) if is_asked else {}, dict[str, float]()
        times = 1 + _SOME[2 if self._types & _HALVES else 4]
        as_it_is = cache(partial(self._if_nudged, frozenset()))  # of now: Python's state may have moved on
        for seen in self._contents() if some else ():
            if seen.of in some and seen.of in self._nudged:
                one, far = (apart(moved[seen.of], seen.eager, seen.before) for moved in (self._nudged, some))
                if seen.again is None or is_off(seen.again, seen.eager, seen.before):
                    continue  # what goes on from pass to pass moves by itself
                if max(off.get(label := self._label(seen), inf), times * one) <= far < inf:
                    now = as_it_is().get(seen.of)
                    found |= {label: far} if now is not None and not is_off(now, seen.eager) else {}
        return found

    def _if_nudged(self, types: Set[torch.dtype], **by_some: bool) -> dict[Any, torch.Tensor]:
        if self.nudged is None:
            return {}
        try:
            run, made = self.nudged(types, **by_some)
        except AuditError:  # the step raises if it is moved
            return {}
        self._types.update(made)
        other = replace(self, run=run, nudged=None)
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
            others = [w for w in beside if self.name_of(w.tensor) or not self.is_scratch(w.tensor)]
        # What an engine does not return of memory of which it returns a part is padding.
        both = eager.lie_in & run.lie_in
        theirs = [written for written in eager.written if storage_of(written.tensor) not in both]
        tensors = [written.tensor for written in (*theirs, *others)]
        references = [w.after for w in theirs] + holding(theirs, [w.tensor for w in others])
        before = [written.before for written in (*theirs, *others)]
        twins = {key_of(written.tensor): written.after for written in again.written}
        for tensor, *held in zip(tensors, holding(run.written, tensors), references, before, strict=True):
            key = key_of(tensor)
            contents: list[Any] = [*held, twins.get(key)]
            if not self.is_one:  # rows behind the batch are nobody's; a step captured itself has none
                rows = _apart_in_bits(contents[2], contents[1])  # of a large cache, few
                contents = [content if content is None else _in_rows(content)[rows] for content in contents]
                mine = changed(contents[2], contents[1])
                contents = [content if content is None else content[mine] for content in contents]
            yield Contents(key, tensor, key in main, *contents)

    def _label(self, seen: Contents) -> str:
        if seen.tensor is None:
            return str(seen.of)
        return self.name_of(seen.tensor) or f"a tensor of shape {[*seen.tensor.shape]} that the step writes"


def _roundings(result: torch.Tensor, is_half: bool) -> float:
    times = _ROUNDINGS if is_half else _MOST_ROUNDINGS
    return times if result.numel() >= _FEW else max(times, 4)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return repr(a) == repr(b) or (type(a) is type(b) and a == b)


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1] if tensor.numel() and tensor.dim() else 1)


def _apart_in_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Which rows of two copies of the same memory do not hold the same."""
    num_rows = len(_in_rows(a))
    one, other = (as_bytes(t).reshape(num_rows, t.nbytes // max(num_rows, 1)) for t in (a, b))
    if one.shape[1] % 8 == 0:
        one, other = one.view(torch.int64), other.view(torch.int64)
    return (one != other).any(dim=1)


def _finite(rows: torch.Tensor) -> torch.Tensor:
    return rows.nan_to_num(0.0, 0.0, 0.0)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision, [rows, elements of a row]."""
    return tensor.double().reshape(len(tensor) if tensor.dim() > 1 else 1, -1)
