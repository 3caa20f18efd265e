"""Runs the passes of an audit and asks every kind of finding what it sees."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch

from mrv2lab import progress
from mrv2lab.audit import (
    diverged,
    frozen_grid,
    frozen_host_value,
    host_sync,
    moved_address,
    names,
    padding_leak,
    silent_eager,
    stale_input,
    unwritten_read,
)
from mrv2lab.audit.arguments import check, counting
from mrv2lab.audit.atoms import MISSING
from mrv2lab.audit.branches import behind_locals
from mrv2lab.audit.evidence import ASKS_BEFORE, KEEPERS, Evidence, explain
from mrv2lab.audit.kinds import OF_GRAPHS, ORDER
from mrv2lab.audit.lines import ROOT, KnownLines, same
from mrv2lab.audit.memory import storage_of, swappable
from mrv2lab.audit.passes import (
    NUM_REQUESTS,
    Engine,
    Pass,
    Passes,
    at_line,
    contents,
    draw_again,
    is_nameless,
    nothing,
    replay,
)
from mrv2lab.audit.recorder import FILLS, Session, entered
from mrv2lab.audit.report import KEPT, NO_SIGN, NOT_COMPARED, AuditReport, Finding, Place, once
from mrv2lab.audit.results import Comparison, Results, agree
from mrv2lab.audit.trace import Trace
from mrv2lab.audit.twin import alone
from mrv2lab.audit.writers import UnwrittenIndex
from mrv2lab.errors import AuditError, BadInput, HostSyncError, NotRepeatable, counted
from mrv2lab.graphs import CapturedGraph, capture, is_capturing, replayed, resolve
from mrv2lab.graphs.base import no_garbage_collection
from mrv2lab.graphs.owned import observable

_MOST_NOTES = 3
_UNCHANGED = f"vary() changed nothing that can be reached from the step, {NO_SIGN}"
_DRAWN = "draw them in vary(), or audit the step up to there; of a module, call eval() first"
_TWIN = "; a twin would tell whether that makes anything wrong (of a file: --twin)"
_TO_REPEAT = "A reset() that puts back in place what it moves on lets it be repeated; a twin needs none"
_RESET = f"{KEPT}. If each step is to make it anew, define a reset() that lets go of it"


def audit(
    step: Callable[[], Any],
    *,
    vary: Callable[[], Any] | None = None,
    reset: Callable[[], Any] | None = None,
    beside: Sequence[Callable[[], Any]] = (),
    inputs: Sequence[torch.Tensor] = (),
    rows: Callable[[], int] | None = None,
    in_flight: int = 0,
    reads: Callable[[], Any] | None = None,
    twin: Callable[[], Any] | None = None,
    backend: str = "auto",
    captured: bool = True,
) -> AuditReport:
    """Capture a step, replay it on other inputs, and name what its graph got wrong.

    A step that replays graphs of its own, at once or later, is not captured; what is asked then is whether
    it still does so.

    Args:
        step: zero-argument callable over static buffers; what it returns, writes or leaves in attributes is
            its result.
        vary: changes the inputs in place, or rebinds them, as the next step would. Without it only what
            shows at the same inputs is found. Called for up to six requests, and again behind a reset that
            undoes it; the host's state is left as the last call leaves it.
        reset: restores state to that of a fresh step. Called before warm-up, replay and each eager pass;
            one that undoes what `vary` has changed is followed by `vary`. It works in place: it binds no
            tensor anew that the graph reads.
        beside: other steps that the same engine captures, each run once and captured, before this one and
            behind it again.
        inputs: static inputs that `vary` is to write for every step, all of them.
        rows: how many leading rows of the result are real, asked after `vary`; those behind are padding.
        in_flight: how many steps later the caller still reads a result.
        reads: what the caller reads of Python's objects after a step, numbers and texts that the step sets.
        twin: makes a fresh engine, an object with `step`, `vary` and, where it has them, `reset`, `eager`,
            `rows`, `beside` and `finish` (what the caller makes of all results). Where nothing else is found,
            two are served, one captured and one eagerly: what leaks into both passes of the audit shows.
        backend: `cuda`, `emulated`, or `auto` for what the machine has.
        captured: False for a step that is meant to run eagerly: then only `unwritten-read` is looked for.

    Raises:
        AuditError: the step raises, does not end, or does other things each time; names the line.
        BadInput: an unknown backend, or no GPU for `cuda`; an argument that is nothing of what it takes.
    """
    backend = resolve(backend)
    called = {"step": step, "vary": vary, "reset": reset, "rows": rows, "reads": reads, "twin": twin}
    check(in_flight, beside=beside, inputs=inputs, **called)
    code = getattr(step, "__code__", None)
    if code is not None and code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR):
        place = Place(code.co_filename, code.co_firstlineno, code.co_name)
        what = "a generator or a coroutine, of which a call runs nothing"
        raise AuditError(f"{place} is {what}; give a function")
    restore, graphs, own, others = reset or nothing, *(list[CapturedGraph]() for _ in range(3))
    if not captured:
        return audit_eager(names.step_name(step), step, fresh=restore, backend=backend)

    def eager() -> Any:
        with replayed() as seen:
            result = step()
        own.extend(seen)
        return result

    def make() -> None:
        restore()
        try:
            eager()
        except Exception:
            if vary is None or is_capturing():
                raise
            vary()  # a step may need a request before it can run at all
            eager()
        recorder = entered()
        if not own and recorder is not None and recorder.captures:
            eager()  # it has captured: from its second call on it may replay
        if not own:
            graphs.append(capture(step, backend=backend))

    def also(other: Callable[[], Any]) -> None:
        other()
        recorder = entered()
        if recorder is None or not (recorder.captures or recorder.trace.replayed()):
            others.append(capture(other, backend=backend))  # kept, as an engine keeps it

    def run() -> Any:
        return replay(graphs[0]) if graphs else step()

    engine = Engine(
        names.step_name(step), make, run, eager, vary or nothing, roots=names.Reachable(step), fresh=restore,
        afresh=(lambda: capture(step)) if backend == "cuda" else None,  # the emulator sees what ops do
        beside={names.step_name(other): partial(also, other) for other in beside}, is_one=True,
        inputs=inputs, num_rows=rows and counting(rows), in_flight=in_flight, reads=reads, twin=twin,
        begun=contents(names.Reachable(step)) if twin else {},
    )  # fmt: skip
    with progress.shown(f"audit of {engine.name}"), observable():
        tried = EngineAudit(engine, backend=backend)
        try:
            report = tried.report()
            if own and graphs:  # it has begun to replay graphs of its own only after it was captured
                graphs.clear()
                tried = EngineAudit(engine, backend=backend)
                report = tried.report()
        except AuditError as error:
            report = _of_fresh_engines(engine, backend, error, tried.passes.changed)
    return replace(report, own_graphs=bool(own), has_twin=twin is not None, varied=vary is not None)


def audit_engine(engine: Engine, *, backend: str = "auto") -> AuditReport:
    """Audit graphs that somebody else captures and replays. Exceptions as in `audit`."""
    return EngineAudit(engine, backend=backend).report()


def _of_fresh_engines(
    engine: Engine, backend: str, error: AuditError, varied: dict[str, Any] | None
) -> AuditReport:
    """What two fresh engines show of a step whose passes show nothing but what was `varied`: one that goes on
    from step to step, or captures as it goes, can be served though it cannot be repeated.

    Raises:
        AuditError: that of the passes, where these show nothing either.
    """
    passes = Passes(Session(backend, engine.anchor), engine)
    shown = alone(passes, diverged.KIND) if engine.twin is not None else None
    if shown is None and engine.twin is None and isinstance(error, NotRepeatable):
        raise NotRepeatable(f"{error}. {_TO_REPEAT}") from error
    if shown is None:
        raise error
    served, found = shown
    report = _report(passes, iter(found))
    told = f"only held against a fresh engine that runs eagerly, in {counted(served, 'request')} in a row"
    unchanged = [_UNCHANGED] if varied == {} and not report.findings else []
    notes = *report.notes, *unchanged, f"{told}: {str(error).splitlines()[0]}"
    return replace(report, notes=notes, changed=_called(varied))


class EngineAudit:
    """An audit of an engine that goes its own way: captures are recorded, steps compared."""

    def __init__(self, engine: Engine, *, backend: str = "auto"):
        self.passes = Passes(Session(resolve(backend), engine.anchor), engine)

    def report(self) -> AuditReport:
        """What all passes show. Exceptions as in `audit`."""

        def found() -> Iterator[Finding]:
            self.passes.capture()
            yield from _compared(self.passes)

        return _report(self.passes, found())

    def capture(self) -> None:
        """Have the engine capture. AuditError: the step raises, or takes an index from what nobody wrote."""
        try:
            self.passes.capture()
        except UnwrittenIndex as stop:
            found = " ".join(str(unwritten_read.of_stop(self.passes.session, stop)).split())
            raise AuditError(f"stopped while it was captured: {found}") from stop

    def step(self, engine: Engine) -> AuditReport:
        """Compare one step of the engine that was captured, with ways of its own to run. As `audit`."""
        self.passes.engine, self.passes.notes = engine, []  # of the steps before
        return _report(self.passes, _compared(self.passes))


def audit_eager(
    name: str, eager: Callable[[], Any], *, fresh: Callable[[], Any] = nothing, backend: str = "auto"
) -> AuditReport:
    """Look for reads of memory nobody wrote in a step that is not captured. Exceptions as in `audit`."""
    passes = Passes(Session(resolve(backend)), Engine(name, nothing, nothing, eager, fresh=fresh))

    def found() -> Iterator[Finding]:
        for allocation in unwritten_read.eagerly(passes):
            yield unwritten_read.finding(passes.session, allocation)

    return _report(passes, found())


def _report(passes: Passes, found: Iterator[Finding]) -> AuditReport:
    """What an audit finds; of one that had to stop, why. What fresh engines have drawn is not drawn."""
    session = passes.session
    try:
        # What passes note is millions of objects and hardly a cycle.
        with no_garbage_collection(), swappable():
            findings = once(found)
    except HostSyncError as error:
        findings = once(host_sync.find(passes, error))
    except UnwrittenIndex as stop:
        findings = (unwritten_read.of_stop(session, stop),)
    except BadInput:
        raise
    except Exception as error:  # over what the step leaves behind, like a tensor of another size
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise AuditError(f"{passes.engine.name} cannot be audited{at_line(error)}: {message}") from error
    finally:
        draw_again(passes.drawn_for_twins)
    num_nodes = sum(len(session.nodes(one.graph)) for one in passes.captures if one.graph is not None)
    opaque, notes = tuple(session.opaque), tuple(passes.notes)
    name, varied = passes.engine.name, _called(passes.changed)
    return AuditReport(name, session.backend, findings, num_nodes, opaque, notes=notes, changed=varied)


def _called(varied: Iterable[str] | None) -> tuple[str, ...]:
    """What `vary` has changed, by name, the shortest first."""
    return tuple(sorted((path for path in varied or () if not is_nameless(path)), key=len))


def _compared(passes: Passes) -> Iterator[Finding]:
    """Replay and run eagerly what the engine has prepared, and ask what that shows."""
    try:
        as_captured = None
        if ASKS_BEFORE.get():
            with suppress(AuditError):  # a step may be one that cannot go on at the same inputs
                as_captured = passes.eager().results
        passes.vary()
        evidence = _evidence(passes, _both(passes), as_captured)
        found = _findings(evidence) or _later(evidence)
    except BaseException as error:
        passes.end()
        if not isinstance(error, AuditError):
            raise
        # What follows an address that leads nowhere raises.
        if not (found := list(moved_address.in_tables(passes, is_null_meant=False))):
            raise
    else:
        passes.end()
    yield from found


def _later(evidence: Evidence) -> list[Finding]:
    """What is found at the first of some requests more at which a replay is not what an eager step is. A twin
    is served as many, but for one whose reset is not called between them."""
    passes, engine = evidence.passes, evidence.passes.engine
    is_asked = engine.is_one and engine.vary is not nothing and evidence.captures and evidence.repeats
    if not is_asked or evidence.eager.replayed() or (engine.twin is not None and not passes.is_rewound):
        return []
    for held in ("named", "by_address"):  # they would own what the next requests let go of
        vars(evidence).pop(held, None)
    lines: Set[int] | None = evidence.eager.values.keys() if _may_glance(evidence) else None
    has_failed = False
    while passes.num_varied < NUM_REQUESTS:
        notes, passes.notes = passes.notes, []
        known = passes.nobodys()
        try:
            passes.vary()
        except AuditError as error:
            passes.notes = notes
            if not isinstance(error.__cause__, StopIteration):  # else inputs have run out
                passes.notes.append(f"no more requests were asked: {str(error).splitlines()[0]}")
            break
        before = counted(passes.num_varied - 1, "request")
        try:
            found, is_doubtful, lines = _at_request(evidence, lines, known)
        except AuditError as error:
            told = f"request {passes.num_varied} {NOT_COMPARED}: {str(error).splitlines()[0]}"
            passes.notes = [*notes, told] if not has_failed else notes
            has_failed = True  # the next one may be served again
            continue
        if found and not is_doubtful:
            passes.notes.append(f"nothing was found at {before} before this one")
            return found
        for one in found[:1]:
            told = f"{one.kind}: {one.subject}: {one.evidence}"
            notes.append(f"differs behind {before}, as rounding may do: {told}")
        passes.notes = notes
    return []


def _at_request(
    evidence: Evidence, lines: Set[int] | None, known: set[int]
) -> tuple[list[Finding], bool, Set[int] | None]:
    """What is found at a later request, whether rounding may explain it, and the lines that a look at the
    next one knows: none where each step has to be watched. `known` is memory that was nobody's before.
    Eagerly first: an index that runs out is noticed there."""
    passes = evidence.passes
    before, seen, eager = passes.plain(), None, None
    if lines is None:
        eager = _eager(passes)
    else:
        seen, way = passes.glance(lines)
    run = passes.run(in_order=True)._replace(left=before)  # a graph runs no Python
    has_lost = not passes.nobodys() <= known
    off = {} if seen is None else _off(evidence, run.results, seen, is_exact=True)
    if seen is not None and not (off or has_lost):
        return [], False, lines
    eager = eager or _eager(passes)
    if has_lost or eager.watched.handed_out or _may_be_wrong(evidence, run, eager):
        later = _evidence(passes, (before, run, eager))
        found, wrong = _findings(later), later.differs.keys()
        return found, bool(wrong) and wrong <= later.doubts.keys(), None
    if seen is None or not _off(evidence, eager.results, seen, is_exact=False):
        return [], False, None
    if eager.trace.random:
        raise _draws(eager.trace)
    return [_done_once(evidence, way, off)], False, None


def _done_once(evidence: Evidence, way: KnownLines, off: dict[str, float]) -> Finding:
    """Of a look that differs from the replay, where another eager pass does not: the host value that has led
    it to a line that no pass had run, or else the first result."""
    name, error = next(iter(off.items()))
    text = f"the replay and an eager step are apart by {error:.3g}, and one more eager step agrees with it"
    text += ": the first has done something once, or has drawn other numbers"
    if way.strayed is None:
        return Finding(diverged.KIND, name, text)
    position, now, new = way.strayed
    positions, old = evidence.session.positions, evidence.eager.values.get(position, ())
    where = positions.place(new)
    for atom, (then, value) in zip(positions.atoms(position), zip(old, now, strict=False), strict=False):
        if then is not MISSING and value is not MISSING and not same(then, value):
            told = f"was {then!r} at the first request, is {value!r} now; {text}, at {where}"
            place = positions.place(position)
            return Finding(frozen_host_value.KIND, atom.text, told, place, (then, value))
    return Finding(diverged.KIND, name, text, where)


def _may_glance(evidence: Evidence) -> bool:
    """Whether looks are enough at later requests: the step leaves Python's objects as they were, so that it
    can be run again where a look differs, and torch tells of all that it writes."""
    engine, (before, _, eager, again) = evidence.passes.engine, evidence.left
    asks_more = engine.num_rows is not None or engine.inputs or engine.reads is not None
    if asks_more or evidence.eager_pass.watched.has_looked_inside or evidence.passes.draws_on:
        return False
    return bool(before == eager == again)


def _may_be_wrong(evidence: Evidence, run: Pass, eager: Pass) -> bool:
    """Whether a later request is worth a look: its passes differ, or more is asked than their results."""
    engine = evidence.passes.engine
    if engine.num_rows is not None or engine.inputs:
        return True
    is_left = engine.reads is not None and run.left != eager.left
    return is_left or bool(_off(evidence, run.results, eager.results, is_exact=True))


def _off(evidence: Evidence, run: Results, eager: Results, *, is_exact: bool) -> dict[str, float]:
    """What differs between two passes of a later request, at all or by more than the fixed bounds."""
    known = names.as_reached(evidence.passes.engine.roots)
    compared = Comparison(run, eager, eager, True, known, is_scratch=evidence.results.is_scratch)
    return compared.differs(is_exact)


def _both(passes: Passes) -> tuple[dict[str, Any], Pass, Pass]:
    """What the step has left before, and the step run both ways on the inputs of now."""
    return passes.plain(), passes.run(in_order=True), _eager(passes)


def _eager(passes: Passes) -> Pass:
    return passes.eager(against=[capture_.trace for capture_ in passes.captures])


def _again(passes: Passes, eager: Pass, before: dict[str, Any]) -> Pass:
    """The step run eagerly once more, fresh memory with another pattern. Where there is none, nothing is
    drawn and Python's objects hold what they held, a look is enough if it shows the very same."""
    watched, is_one = eager.watched, passes.engine.is_one
    hides = watched.handed_out or eager.trace.random or watched.has_looked_inside or eager.trace.replayed()
    if not is_one or hides or before != eager.left or passes.draws_on:
        return passes.eager(None)
    seen, way = passes.glance(eager.trace.values.keys())
    if seen.is_same(eager.results) and way.strayed is None:
        return Pass(watched, eager.results, passes.plain())
    third = passes.eager(None)
    return third if agree(eager.results, seen) else third._replace(results=seen)


def _evidence(
    passes: Passes, both: tuple[dict[str, Any], Pass, Pass], as_captured: Results | None = None
) -> Evidence:
    """Both ways of a step, and once more eagerly. AuditError: that shows nothing."""
    engine, (before, run, eager) = passes.engine, both
    if run.raised is not None:
        passes.notes.append(f"{run.raised}; run eagerly it does not")
    if not eager.trace.replayed():
        is_empty = run.results.is_empty and eager.results.is_empty
        _require_work(passes, eager.trace, is_empty, eager.results.closed)
    again = _again(passes, eager, before)
    three = run.results, eager.results, again.results

    def nudged(types: Set[torch.dtype], by_some: bool = False) -> tuple[Results, Set[torch.dtype]]:
        moved = passes.eager(nudged=types, by_some=by_some)
        if _does_other_work(moved.trace, eager.trace):
            raise AuditError("the step has gone on: an eager pass does other work each time")
        return moved.results, moved.watched.moved

    is_scratch = partial(passes.is_scratch, eager=eager.trace)
    results = Comparison(*three, engine.is_one, names.as_reached(engine.roots), nudged, is_scratch=is_scratch)
    other = {p for p, value in run.began.items() if not same(value, eager.began.get(p))}  # set by the reset
    four = before, run.left, eager.left, again.left
    left = tuple({path: value for path, value in one.items() if path not in other} for one in four)
    evidence = Evidence(
        passes, passes.captures, run.trace, eager, results, left, again.trace, before=as_captured
    )
    evidence.unsteady = _unsteady(eager.trace, again.trace)
    for seen in KEEPERS.get():
        seen.append(evidence)
    is_one = evidence.repeats and not (evidence.draws_on and evidence.differs)
    if not is_one and not any(moved_address.carried(evidence)):
        _require_repeatable(evidence, eager.trace, again.trace)
    return evidence


def _does_other_work(moved: Trace, eager: Trace) -> bool:
    """Whether a pass was given other whole numbers than another one, or did anything else."""
    for event in moved.own():
        twin = eager.get(event.key)
        if twin is None or twin.shapes != event.shapes:
            return True
        if any(type(a) is not float and not same(a, b) for _, a, b in twin.scalars_with(event)):
            return True
    return False


def _unsteady(first: Trace, second: Trace) -> dict[Place | None, tuple[str, bool]]:
    """Where an eager pass has passed another number than the one before, at the same inputs: what it was and
    is, and whether a host value that can be named, and outlives its function, is behind that."""
    found: dict[Place | None, tuple[str, bool]] = {}
    for event in second.own():
        place, at = second.place(event), event.key[0]
        for label, old, new in twin.scalars_with(event) if (twin := first.get(event.key)) else ():
            if place not in found and not same(old, new):
                reason = explain(first, second, at, (old, new), event.spot)
                is_state = (reason and reason.atom.is_state) or behind_locals(first, second, at, event.spot)
                found[place] = f"{event.name} got {label}={old!r}, then {new!r}, at {place}", bool(is_state)
    return found


def _findings(evidence: Evidence) -> list[Finding]:
    """Ask the kinds in their order. Each sees what those before it have found."""
    is_told, leaks = False, list[Finding]()
    for group in ORDER:
        asked = {"always": True, "differ": bool(evidence.differs), "nothing": not evidence.is_explained}
        # Causes last: they ask for passes, and what these leave others would see.
        kinds = sorted((kind for kind in group if asked[kind.ASKED]), key=lambda kind: -kind.RANK)
        found = [(at, kind.RANK, finding) for kind in kinds for at, finding in kind.find(evidence)]
        # In the order in which the eager pass meets them; at one place causes come first.
        new = [finding for _, _, finding in sorted(found, key=lambda item: item[:2])]
        if any(one.kind in OF_GRAPHS for one in new) and _is_eager_by_choice(evidence):
            of_capture = next(one for one in new if one.kind in OF_GRAPHS)
            if not is_told:
                told = f"{of_capture.kind}: {of_capture.subject}: {of_capture.evidence}"
                evidence.passes.notes.append(f"runs eagerly as it is served; captured it goes wrong: {told}")
                is_told = True
            new = [one for one in new if one.kind not in OF_GRAPHS]
        evidence.found += new
        leaks += [one for one in new if one.kind == padding_leak.KIND] if padding_leak in group else []
        if evidence.is_explained and group is ORDER[0]:
            break
    # A graph may read padding for what it does wrong, like a number of rows that is frozen.
    is_graphs = any(one.kind in OF_GRAPHS for one in evidence.found)
    evidence.found.sort(key=lambda one: (evidence.hangs_on_idle(one), is_graphs and one in leaks))
    evidence.passes.notes += _notes(evidence)
    return evidence.found


def _is_eager_by_choice(evidence: Evidence) -> bool:
    """Whether a step that has branches with graphs of its own replays none, of an engine that says what
    running eagerly is: then nobody captures it, and what an audit has captured is not what is served."""
    twin = evidence.passes.engine.twin
    if twin is None or silent_eager.not_taken(evidence.eager) is None or not hasattr(twin(), "eager"):
        return False
    replays = silent_eager.of_fresh(evidence).replays
    return bool(replays) and not any(replays)


def _notes(evidence: Evidence) -> Iterator[str]:
    """What is no fault: frozen numbers that cost only speed, work beside graphs. And how far to trust it."""
    results = evidence.results
    if evidence.found:
        for doubt in evidence.doubts.values():
            yield f"{doubt}: what is found may be rounding"
    if not evidence.differs and results.eager.is_never_finite:
        yield "no result holds a finite number, so nothing could be compared"
    elif not evidence.differs:
        if evidence.works_with:
            what = ", ".join(evidence.works_with)
            reads = "; wrong if anything else reads it" + _TWIN * (evidence.passes.engine.twin is None)
            yield f"memory that the step works with differs, and what it returns does not: {what}{reads}"
        told, frozen = {found.subject for found in evidence.found}, dict[str, Finding]()
        for _, finding in [*frozen_host_value.find(evidence), *frozen_grid.find(evidence)]:
            frozen.setdefault(finding.subject, finding)
        kept = (
            one for one in frozen.values() if one.subject not in told and not _is_of_capture(evidence, one)
        )
        for finding in islice(kept, _MOST_NOTES):
            apart = results.excused and f"a result {max(results.excused):.2g} apart, as rounding explains"
            rows = evidence.passes.num_rows
            same_so_far = "the same result" if rows is None else f"the same first {rows} rows of the result"
            same_so_far += ", and something else is written" * bool(results.unsettled)
            yield f"frozen, with {apart or same_so_far}: {finding.subject}: {finding.evidence}"
    elif results.eager.returned and not evidence.differs.keys() & (results.run.named | results.eager.named):
        what = ", ".join(evidence.differs)  # which a later request may well return
        yield f"what the step returns agrees at this request; what it writes does not: {what}"
    yield from _of_inputs(evidence)
    if evidence.draws_on and not evidence.found and evidence.passes.engine.twin is None:
        place = evidence.eager.place(evidence.eager.random[0])
        yield f"what the random numbers change that are drawn at {place} {NOT_COMPARED}: they changed nothing"
    yield from stale_input.unasked(evidence)
    yield from padding_leak.unasked(evidence)
    if not evidence.eager.values and evidence.passes.engine.is_one:
        yield "no line can be named: none that ran lies in a file, as where code is piped to Python"
    if evidence.unsteady and not evidence.found:
        got = next(iter(evidence.unsteady.values()))[0]
        yield f"two eager passes at the same inputs differ: {got}. A graph keeps the first"
    if results.eager.closed:
        yield f"what the step returns could not be looked into: {', '.join(results.eager.closed)}"
    if evidence.left_behind and evidence.passes.engine.reads is None:
        named = ", ".join(islice(evidence.left_behind, _MOST_NOTES))
        ask = "" if evidence.passes.engine.twin else _TWIN
        yield f"set by the step in Python, and by no replay: {named}{ask}"
    if path := _read_by_vary(evidence):
        ask = "" if evidence.passes.engine.twin else _TWIN
        yield f"vary() reaches {path}, which the step binds anew and no replay does{ask}"
    is_asked = evidence.passes.engine.is_one and not any(f.kind == silent_eager.KIND for f in evidence.found)
    untaken = silent_eager.not_taken(evidence.eager) if is_asked else None
    if untaken and (place := evidence.session.positions.place(untaken)):
        text = f"replays no graph of its own, and could: see the branch at {place}: {place.source}"
        yield text + silent_eager.decided_in(evidence.eager, untaken)
    elif is_asked and (path := silent_eager.unused(evidence)):
        yield f"replays no graph of its own, and could: {path} holds the same work"
    if evidence.eager.replayed():
        beside, nodes = evidence.run.beside_graphs(), evidence.run.num_nodes()
        if beside:
            yield f"issues {counted(len(beside), 'op')} beside graphs of {counted(nodes, 'node')}"


def _read_by_vary(evidence: Evidence) -> str | None:
    """What an eager step has bound that `vary` can reach, where nothing was found, or by a twin alone."""
    engine, begin = evidence.passes.engine, evidence.passes.begin
    is_asked = bool(evidence.found) is (engine.twin is not None)
    if not is_asked or evidence.differs or not engine.is_one or engine.vary is nothing:
        return None
    born, fresh = {at for one in evidence.captures for at in one.born}, evidence.eager_pass.watched.born
    for path, tensor in names.walk(names.Reachable(engine.vary)) if born else ():
        is_elsewhere = begin.get(path) in born and begin[path] != tensor.data_ptr()
        if is_elsewhere or storage_of(tensor) in fresh:
            return path
    return None


def _is_of_capture(evidence: Evidence, finding: Finding) -> bool:
    """Whether the warm-up before a capture saw what an eager pass sees now: capturing itself changes it."""
    for one in evidence.captures:
        for position, values in one.warm_up.values.items():
            three = zip(values, one.trace.values.get(position, ()), strict=False)
            for atom, (first, then) in zip(evidence.session.positions.atoms(position), three, strict=False):
                is_it = atom.text == finding.subject and not same(first, then)
                if is_it and finding.change is not None and same(first, finding.change[1]):
                    return True
    return False


def _of_inputs(evidence: Evidence) -> Iterator[str]:
    """Where `vary` has changed nothing; or what of that the first pass alone has read: neither the replay nor
    the eager pass makes anew what was made of it."""
    passes, changed = evidence.passes, evidence.passes.changed
    if changed is None or evidence.found or not evidence.captures or evidence.eager.replayed():
        return
    if not changed and not _looks_elsewhere(evidence):
        yield _UNCHANGED
    if passes.engine.fresh is not nothing:  # whoever gives a reset has thought of it
        return
    if (found := next(_read_once(evidence, changed), None)) is not None:
        where = f"at {evidence.session.positions.place(found[1])}, and has changed since"
        yield f"{found[0]} was read in the first pass alone, {where}. {_RESET}"


def _read_once(evidence: Evidence, changed: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """What `vary` has changed of what the first pass alone has read, by path, each with a line: what the line
    names, and then what work there was given, by whatever name."""
    reads, memory = _first_alone(evidence), evidence.passes.at_capture
    for position, values in evidence.captures[0].warm_up.values.items():
        if (read := reads.get(position)) is None:
            continue
        for atom, value in zip(evidence.session.positions.atoms(position), values, strict=True):
            for path in (path for path in changed if atom.leads_to(path) and not same(value, changed[path])):
                if not isinstance(changed[path], tuple) or any(
                    at == 0 or at in memory.get(path, ()) for at in read
                ):
                    yield path, position
    tensors = [path for path, value in changed.items() if isinstance(value, tuple) and path in memory]
    for position, read in reads.items():
        yield from ((path, position) for path in tensors if any(at in memory[path] for at in read))


def _first_alone(evidence: Evidence) -> dict[int, set[int]]:
    """The lines that the first pass alone ran, or at which it alone issued work; with where that lies what
    this work looked at. 0 stands for what other lines have made, and for what no work has looked at."""
    one, eager, found = evidence.captures[0], evidence.eager, dict[int, set[int]]()
    works = [event for event in one.warm_up.own() if event.sort != "view"]
    turns = Counter(event.key[:2] for event in works)
    later = Counter((*event.key[:2], event.outside()) for event in one.trace.own())
    born = {(event.key[0], m.address) for event in works for m in evidence.made.made.get(event.key, ())}
    for event in works:
        position, outside = event.key[0], event.outside()
        later[*event.key[:2], outside] -= 1
        if later[*event.key[:2], outside] < 0 and eager.turns(event.key) < turns[event.key[:2]]:
            looks = event.is_work and event.name not in FILLS
            own = {0 for t in event.tensors if t.is_own and (position, t.address) not in born}
            found.setdefault(position, set()).update(own | outside - {0} if looks else ())
    alone = (at for at in one.warm_up.values if at not in one.trace.values and at not in eager.values)
    return {at: {0} for at in alone} | found


def _looks_elsewhere(evidence: Evidence) -> bool:
    """Whether an eager pass meets other values than the two before `vary` did: they are reached by a call."""
    captured, eager = evidence.captures[0], evidence.eager.values
    for position, values in captured.trace.values.items():
        three = zip(captured.warm_up.values.get(position, ()), values, eager.get(position, ()), strict=False)
        if any(same(first, second) and not same(second, now) for first, second, now in three):
            return True
    passed = (both for old, new, _ in evidence.pairs() for both in old.scalars_with(new))
    return not evidence.unsteady and any(not same(old, new) for _, old, new in passed)


def _require_work(passes: Passes, eager: Trace, is_empty: bool, closed: Sequence[str]) -> None:
    """AuditError: the step does no work, or no result of it was seen: none can be wrong, and none right."""
    name, work = passes.engine.name, [event for event in eager.own() if event.is_work]
    if work and is_empty:
        why = "leaves no result that the audit can see: it returns no tensor and writes none that it holds"
        if closed:
            why = f"leaves no result that the audit can see: {', '.join(closed)} cannot be looked into"
        last = f"{work[-1].name} at {eager.place(work[-1])}"
        raise AuditError(f"{name} {why}; its last work: {last}. Return the result")
    if not work and not any(event.is_work for one in passes.captures for event in one.trace.own()):
        last_line = eager.lines.positions.place(next(reversed(eager.values), ROOT))
        where = f" (its last line: {last_line})" if last_line else ""
        unless = ". Does it with other inputs? Give `vary`" if passes.engine.vary is nothing else ""
        raise AuditError(f"{name} does no work on the device{where}: nothing to audit{unless}")


def _draws(trace: Trace) -> NotRepeatable:
    event = trace.random[0]
    told = f"the step cannot be repeated: {event.name} draws random numbers at {trace.place(event)}"
    return NotRepeatable(f"{told}; {_DRAWN}")


def _require_repeatable(evidence: Evidence, first: Trace, second: Trace) -> None:
    """AuditError: two eager passes gave different results, and no host value that can be named is why."""
    told = "the step cannot be repeated"
    if first.random:
        raise _draws(first)
    for event in second.own():
        twin = first.get(event.key)
        if twin is None or twin.shapes != event.shapes:
            if evidence.differs and len(second.events) < len(first.events):
                return  # the first pass used something up: the second does less, and nothing else
            raise NotRepeatable(f"{told}: it does more work each time, first at {second.place(event)}")
        if (unsteady := evidence.unsteady.get(second.place(event))) is not None:
            if unsteady[1]:
                return
            raise NotRepeatable(f"{told}: {unsteady[0]}; a graph goes on with the one of its capture")
