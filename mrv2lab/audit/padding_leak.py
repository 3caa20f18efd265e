"""padding-leak: real rows of the result change with what the rows behind the batch hold."""

from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch

from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.fresh import Fresh, Request, Tensors, engine_of, results_off, serve
from mrv2lab.audit.memory import (
    RowsOfAll,
    clone,
    is_infinite,
    put_pattern,
    put_where,
    shadows_of,
    storage_of,
    unseen_writes,
)
from mrv2lab.audit.recorder import Recorder, Session
from mrv2lab.audit.report import Finding
from mrv2lab.audit.stale_input import PATTERNS, Part, depends, of_zeros, rows_of
from mrv2lab.audit.unwritten_read import responsible

KIND, SHORT, RANK = "padding-leak", "pad", 1
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """Asked where it is said how many rows are real: what `vary` left behind them is given two patterns."""
    if (rows := evidence.passes.num_rows) is None:
        return
    for part in depends(evidence, dict(enumerate(_behind(evidence, rows))), rows, are_real=False):
        text = f"the first {rows} rows of the result change with what rows {rows} and up of it hold"
        text += ", NaN or a number, and nobody has written those for this step"
        at, place = evidence.user(part.tensor)
        yield at, Finding(KIND, evidence.view_called(part.tensor), text, place)


def unasked(evidence: Evidence) -> Iterator[str]:
    """Words where it is said how many rows are real: where `vary` has written all that lie behind them, and
    where nobody knows which rows of a result are."""
    passes, rows, results = evidence.passes, evidence.passes.num_rows, evidence.results.run
    if rows is None:
        return
    if not rows:
        yield "rows() has told that none is real, so no row of a result was compared"
    if passes.uneven:
        told = " and ".join(map(str, sorted(passes.uneven)))
        yield f"the step returns tensors of {told} rows: of each the first {rows} were compared, and no more"
    is_asked = bool(parts := [*_behind(evidence, rows)])
    sizes = {len(part.tensor) for part in parts}
    if parts and not (results.returned or rows_of(results.first(), sizes)):
        told = "the step returns nothing, and writes nothing of as many rows as"
        name = evidence.view_called(parts[0].tensor)
        yield f"{told} {name}: what the padding of that does was not asked"
    for part in parts:
        yield from of_zeros(evidence, part)
    known = ((tensor, passes.rows_written.of(tensor)) for tensor in passes.views() if len(tensor) > rows)
    written, lens = ((tensor, one) for tensor, one in known if one and one.leads(rows)), passes.row_counts
    leading = [(tensor, one) for tensor, one in written if one.has_cleared(tensor, rows, lens)]
    # Integers may say that a row is nobody's, and so may an infinity.
    inputs = (
        t for t, _ in leading if not is_asked or (t.dtype.is_floating_point and not is_infinite(t).any())
    )
    for padded in islice(inputs, 1):
        told = f"vary() has written {evidence.view_called(padded)} behind its {rows} real rows too"
        yield f"{told}, so what they do to the real ones was not asked: let it write those alone, by slices"


def in_a_row(evidence: Evidence) -> Findings:
    """Asked of fresh engines that serve requests in a row: what padding leaves in their state, where a later
    request reads it. None puts it back there."""
    passes = evidence.passes
    if passes.num_rows is None:
        return

    written = {storage_of(one.tensor) for one in evidence.results.written}
    states = {path for path, tensor in evidence.named if storage_of(tensor) in written}

    def served(group: Set[str], other: int | None) -> tuple[list[Request], dict[str, int]]:
        engine = engine_of(evidence)
        if engine.rows is None:
            passes.notes.append("what padding leaves in a state was not asked: a twin tells no rows")
            return [], {}
        padded = _Padded(engine, evidence.session, states, group, other)
        return serve(engine), padded.found

    def real(one: Request) -> Request:
        """What it has written instead of returning it, without rows that are as little real as those of the
        inputs, nor slots or blocks that it writes beside such rows."""
        padded = rows_of({p: t for p, t in one.results.items() if p in one.before}, {*found.values()})

        def cut(tensors: Mapping[str, torch.Tensor]) -> Tensors:
            kept = {p: t for p, t in tensors.items() if p in padded or p not in one.before}
            return {p: t[: one.rows] if t.dim() and p in padded else t for p, t in kept.items()}

        return one._replace(results=cut(one.results), before=cut(one.before)) if one.before else one

    def off(group: Set[str], other: int | None) -> int | None:
        """The first request that something else there changes."""
        ours, _ = served(group, other)
        pairs = enumerate(zip(map(real, ours), map(real, right), strict=False), 1)
        return next((number for number, (one, two) in pairs if any(results_off(one, two))), None)

    with suppress(Exception):  # of a step that cannot go on with what is put there
        right, found = served(frozenset(), None)
        if not found or off(frozenset(), None):
            return
        if not (others := [other for other in (PATTERNS[1], None) if off({*found}, other)]):
            return
        other, paths = others[0], dict(enumerate(found))
        for path in responsible(paths, lambda group: bool(off({paths[n] for n in group}, other))):
            text = f"request {off({path}, other)} of those in a row changes with what stood behind the real "
            text += f"rows of {path}, in it or before: the step has left that where real rows read it"
            at, place = 0, None
            if (tensor := dict(evidence.named).get(path)) is not None:
                at, place = evidence.user(tensor)
            yield at, Finding(KIND, path, text, place)


class _Padded:
    """Has an engine run with a pattern behind the real rows of its inputs, where `vary` has written others of
    them, and for some (`second`) with another one, or with what is there.

    None gets one of the `states` that a step writes, if it has another number of rows than the results: that
    has slots or blocks.
    """

    def __init__(
        self, engine: Fresh, session: Session, states: Set[str], second: Set[str], other: int | None
    ):
        self.engine, self.session, self.states = engine, session, states
        self.second, self.other = second, other
        self.found: dict[str, int] = {}  # with the number of rows
        self._sizes = {len(tensor) for tensor in engine.first.values() if tensor.dim()}
        self._written, self._run = RowsOfAll(), engine.run
        self._masks = list[tuple[str, torch.Tensor, np.ndarray]]()  # of the request that is prepared
        engine.make_inputs, engine.run = self.vary, self.run

    def _is_input(self, path: str, tensor: torch.Tensor) -> bool:
        return len(tensor) in self._sizes or path not in self.states

    def vary(self) -> None:
        """The inputs of a request."""
        held = {path: one for path, one in self.engine.held() if one.dim() and self._is_input(path, one)}
        shadows = shadows_of(held.values())
        with unseen_writes(shadows, held.values()), Recorder(self.session, earlier=shadows, any_write=True):
            self.engine.vary()
        assert self.engine.rows is not None
        self._masks, rows = [], self.engine.rows()
        for path, tensor in held.items():
            if (view := shadows[storage_of(tensor)].view(tensor)) is not None:
                self._written.note(tensor, view, rows)
            written = None if view is None else self._written.of(tensor)
            if written is None or not written.leads(rows):
                continue
            if (mask := written.behind(tensor, rows, self._sizes)).any():
                self.found[path] = len(tensor)
                self._masks.append((path, tensor, mask))

    def run(self) -> Any:
        """The step, with patterns. What it read has what it had before: a `vary` may count on from there."""
        before = [(tensor, mask, clone(tensor)) for _, tensor, mask in self._masks]
        for path, tensor, mask in self._masks:
            which = self.other if path in self.second else PATTERNS[0]
            if which is not None:
                put_pattern(tensor, mask, which)
        try:
            return self._run()
        finally:
            for tensor, mask, content in before:
                put_where(tensor, mask, content)


def _behind(evidence: Evidence, rows: int) -> Iterator[Part]:
    """What `vary` has left as it was behind the real rows, of inputs that it has written. What the step
    writes and has another number of rows than its results is no input: a pool of blocks or slots. Of views
    of one memory the largest counts."""
    passes, sizes = evidence.passes, evidence.passes.row_counts
    written = {storage_of(tensor) for capture in evidence.captures for tensor in capture.written}
    asked = shadows_of(passes.views())
    for tensor in sorted(passes.views(), key=torch.Tensor.numel, reverse=True):
        known = passes.rows_written.of(tensor)
        is_input = len(tensor) in sizes or storage_of(tensor) not in written
        if known is None or not (is_input and known.leads(rows)):
            continue
        mask, shadow = known.behind(tensor, rows, sizes), asked[storage_of(tensor)]
        if (seen := shadow.view(tensor)) is not None:
            mask &= ~seen
        if mask.any():
            shadow.note_write(tensor)
            yield Part(tensor, mask, is_partly=True)
