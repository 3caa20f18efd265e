"""Runs the passes of an audit and asks every kind of finding what it sees.

    reset(); step()            warm-up, as an engine does it
    capture(step)              at once: what the warm-up has used up is used up
    vary()                     the inputs of another step
    reset(); graph.replay()    what an engine would do with them ...
    reset(); step()            ... and what would be right, twice, to see whether the step can be repeated

`reset` is called before each pass and never between warm-up and capture. After every pass what it wrote
is put back, so in the end all buffers hold what they held after `vary`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

import torch

from mrv2lab import progress
from mrv2lab.audit import diverged, host_sync, moved_address, names, silent_eager, unwritten_read
from mrv2lab.audit.evidence import Evidence, explain, keep
from mrv2lab.audit.kinds import CAUSES, Found
from mrv2lab.audit.lines import ROOT, same, users_frame
from mrv2lab.audit.memory import FURTHER, Allocation, Saved, Shadow, clone, key_of, pattern, storage_of
from mrv2lab.audit.recorder import Capture, Recorder, Session, UnwrittenIndex, entered
from mrv2lab.audit.report import AuditReport, Finding, Place, once
from mrv2lab.audit.results import (
    Results,
    Written,
    agree,
    apart,
    changed,
    elsewhere,
    holding,
    is_off,
    padding_cut,
    returned,
    unlike,
    values,
)
from mrv2lab.audit.trace import Event, Trace
from mrv2lab.errors import AuditError, BadInput, CaptureError, HostSyncError
from mrv2lab.graphs import CapturedGraph, capture, resolve

_MOST_UNWRITTEN = 8


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Engine:
    """Somebody else's way to capture and replay a step.

    Attributes:
        name: of the step, for the report.
        capture: warm-up and capture. Every capture made in it is recorded, through whatever class.
        run: the step as the engine runs it, with replays.
        eager: the same step without a graph, on the same buffers.
        vary: changes the inputs in place, as the next step would.
        anchor: a function that captured and eager pass both go through. Lines are compared from there on.
        replays: whether `run` should replay a graph.
        roots: objects by name, from which tensors are named.
        fresh: state of a fresh step, made before each pass and not looked at.
        afresh: captures the eager step at the inputs of now, to see the kernels that ops in C++ launch.
        is_one: `eager` is what was captured, so both are to return the same kind of thing and to write the
            same memory. An engine pads its batches, and its graphs write rows that nobody reads.
    """

    name: str
    capture: Callable[[], Any]
    run: Callable[[], Any]
    eager: Callable[[], Any]
    vary: Callable[[], Any] = _nothing
    anchor: Callable[..., Any] | None = None
    replays: bool = True
    roots: Mapping[str, Any] = field(default_factory=dict)
    fresh: Callable[[], Any] = _nothing
    afresh: Callable[[], CapturedGraph] | None = None
    is_one: bool = False


def audit(
    step: Callable[[], Any],
    *,
    vary: Callable[[], Any] | None = None,
    reset: Callable[[], Any] | None = None,
    backend: str = "auto",
    captured: bool = True,
) -> AuditReport:
    """Capture a step, replay it on other inputs, and name what its graph got wrong.

    A step that replays graphs of its own is not captured; what is asked then is whether it still does so.

    Args:
        step: zero-argument callable over static buffers; what it returns, writes or leaves in attributes is
            its result.
        vary: changes the inputs in place, or rebinds them, as the next step would. Without it only what
            shows at the same inputs is found.
        reset: restores state to that of a fresh step. Called before warm-up, replay and each eager pass.
        backend: `cuda`, `emulated`, or `auto` for what the machine has.
        captured: False for a step that is meant to run eagerly: then only `unwritten-read` is looked for.

    Raises:
        AuditError: the step raises, does not end, or does other things each time; names the line.
        BadInput: an unknown backend, or no GPU for `cuda`.
    """
    backend = resolve(backend)
    _require_plain(step)
    restore, graphs = reset or _nothing, []
    own: list[CapturedGraph] = []

    if not captured:
        return audit_eager(names.step_name(step), step, fresh=restore, backend=backend)

    def make() -> None:
        restore()
        step()
        recorder = entered()
        own.extend(recorder.trace.replayed() if recorder else ())
        if not own:
            graphs.append(capture(step, backend=backend))

    def run() -> Any:
        if not graphs:
            return step()
        graphs[0].replay()
        return graphs[0].outputs

    engine = Engine(
        names.step_name(step), make, run, step, vary or _nothing, roots=names.Reachable(step), fresh=restore,
        afresh=(lambda: capture(step)) if backend == "cuda" else None,  # the emulator sees what ops do
        is_one=True,
    )  # fmt: skip
    with progress.shown(f"audit of {engine.name}"):
        return replace(audit_engine(engine, backend=backend), own_graphs=bool(own), varied=vary is not None)


def _require_plain(step: Callable[[], Any]) -> None:
    """A call of a coroutine or generator function runs nothing of it.

    Raises:
        AuditError: names the line where it is defined.
    """
    code = getattr(step, "__code__", None)
    if code is not None and code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR):
        place = Place(code.co_filename, code.co_firstlineno, code.co_name)
        raise AuditError(
            f"{place} is a generator or a coroutine, of which a call runs nothing; give a function"
        )


def audit_engine(engine: Engine, *, backend: str = "auto") -> AuditReport:
    """Audit graphs that somebody else captures and replays. Exceptions as in `audit`."""
    audit = EngineAudit(engine, backend=backend)
    return audit.report(audit.capture, audit.compare)


class EngineAudit:
    """An audit of an engine that goes its own way: captures are recorded, steps compared."""

    def __init__(self, engine: Engine, *, backend: str = "auto"):
        self._session = Session(resolve(backend), engine.anchor)
        self._passes = _Passes(self._session, engine, Recorder(self._session))

    def capture(self) -> Iterator[Finding]:
        """Let the engine capture, and record it."""
        self._passes.capture()
        return iter(())

    def compare(self) -> Iterator[Finding]:
        """Replay and run eagerly what the engine has prepared."""
        return self._passes.findings()

    def step(self, engine: Engine) -> AuditReport:
        """Compare one step of the engine that was captured, with ways of its own to run. As `audit`."""
        self._passes.engine = engine
        return self.report(self.compare)

    def report(self, *parts: Callable[[], Iterator[Finding]]) -> AuditReport:
        """What parts of an audit find."""
        return _report(self._passes, (finding for part in parts for finding in part()))


def audit_eager(
    name: str, eager: Callable[[], Any], *, fresh: Callable[[], Any] = _nothing, backend: str = "auto"
) -> AuditReport:
    """Look for reads of memory nobody wrote in a step that is not captured. Exceptions as in `audit`."""
    session = Session(resolve(backend))
    passes = _Passes(session, Engine(name, _nothing, _nothing, eager, fresh=fresh), Recorder(session))
    return _report(passes, passes.findings_eagerly())


def _report(passes: "_Passes", found: Iterator[Finding]) -> AuditReport:
    """What an audit finds; of one that had to stop, why."""
    session = passes.session
    findings: tuple[Finding, ...]
    try:
        findings = once(found)
    except HostSyncError as error:
        findings = (host_sync.of_error(error, _users_line(error)),)
    except UnwrittenIndex as stop:
        findings = (unwritten_read.of_stop(session, stop),)
    except BadInput:
        raise
    except Exception as error:  # over what the step leaves behind, like a tensor of another size
        place = _users_line(error)
        at = f" at {place}: {place.source}" if place else ""
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise AuditError(f"{passes.engine.name} cannot be audited{at}: {message}") from error
    num_nodes = _num_nodes(session, passes.made.captures)
    return AuditReport(passes.engine.name, session.backend, findings, num_nodes, tuple(session.opaque))


class _Passes:
    """The passes over one engine, in the order of the module's description."""

    def __init__(self, session: Session, engine: Engine, made: Recorder):
        self.session, self.engine, self.made = session, engine, made

    def capture(self) -> None:
        """The engine's own warm-up and captures."""
        engine = self.engine
        with _naming("while it was captured"), self.made:
            engine.capture()
        self._left = self._left_in_attributes(self.made.captures[-1].born if self.made.captures else {})
        self.session.uncomputed.clear()  # what comes next is not watched, and memory is lent anew
        self._at_capture = {path: storage_of(tensor) for path, tensor in names.walk(engine.roots)}

    def findings(self) -> Iterator[Finding]:
        """Run the step both ways, then draw conclusions, the causal ones first."""
        engine = self.engine
        with _naming("when the inputs were varied"):
            engine.vary()
        run, run_results = self._run(set())
        eager, eager_results = self._eager(engine.eager, frozenset(), [c.trace for c in self.made.captures])
        if run_results.is_empty and eager_results.is_empty and not eager.trace.replayed():
            _refuse_to_guess(engine.name, eager.trace)
        evidence = Evidence(
            self.session, engine.name, self.made.captures, run.trace, eager.trace, {},
            engine.roots, self._at_capture, engine.replays, made=self.made.trace,
        )  # fmt: skip
        keep(evidence)
        passes = [eager.trace, *(capture_.trace for capture_ in self.made.captures)]
        if not eager.trace.replayed() and not any(event.is_work for trace in passes for event in trace.own()):
            last = eager.trace.lines.positions.place(next(reversed(eager.trace.values), ROOT))
            where = f" (its last line: {last})" if last else ""
            unless = ". Does it with other inputs? Give `vary`" if engine.vary is _nothing else ""
            raise AuditError(f"{engine.name} does no work on the device{where}: nothing to audit{unless}")
        again, again_results = self._eager(engine.eager, None, [])
        # On the CPU the same kernels give the same bits.
        is_exact = engine.is_one and self.session.backend == "emulated" and evidence.does_the_same
        evidence.differs = differs = self._compare(run_results, eager_results, again_results, is_exact)
        evidence.repeats = agree(eager_results, again_results)
        if not evidence.repeats:
            _require_repeatable(evidence, eager.trace, again.trace)
        silent = [finding for _, finding in silent_eager.find(evidence)]
        yield from silent
        if silent:
            return
        if differs and engine.afresh is not None:
            self._fresh()
            with _naming("when it was captured again"):
                evidence.afresh = engine.afresh().kernels()
        causes = _sorted(evidence, CAUSES) if differs else [f for _, f in moved_address.dangling(evidence)]
        yield from causes
        evidence.unwritten = self._unwritten_in_graphs(run_results)
        if not evidence.repeats and not evidence.unwritten:
            evidence.unwritten = self._unwritten_between(eager_results, causes)
        elif not evidence.unwritten:
            evidence.unwritten = self._unwritten_otherwise(eager, eager_results)
        unwritten = _sorted(evidence, (unwritten_read,))
        yield from unwritten
        if not causes and not unwritten:
            yield from _sorted(evidence, (diverged,))

    def findings_eagerly(self) -> Iterator[Finding]:
        """What can be said of a step that is not captured."""
        trace = Trace(self.made.trace.lines)
        evidence = Evidence(self.session, self.engine.name, [], trace, trace, {}, {})
        evidence.unwritten = self.unwritten_eagerly()
        yield from (finding for _, finding in unwritten_read.find(evidence))

    # ---- passes ----

    def _fresh(self) -> None:
        with _naming("when it was reset"):
            self.engine.fresh()

    def _run(self, second: set[int]) -> tuple[Recorder, Results]:
        """The engine's step. Cells in `second` hold the second pattern; all is put back afterwards."""
        self._fresh()
        saved = Saved()
        for capture_ in self.made.captures:
            for tensor in capture_.written:
                saved.save(tensor)
        kept = self._poison_kept(second)
        self.session.cells.set(second, 1)
        recorder = Recorder(self.session)
        try:
            with _naming("when it was replayed"):
                with recorder:
                    result = self.engine.run()
                made = returned(result)
                left = self._copies(self._left, made)
            return recorder, Results(made, _written(saved, recorder.saved), values(result), left)
        finally:
            self.session.cells.set(second, 0)
            recorder.saved.restore()
            saved.restore()
            kept.restore()

    def _eager(
        self, eager: Callable[[], Any], poisoned: Set[int] | None, against: list[Trace], which: int = 1
    ) -> tuple[Recorder, Results]:
        """The step without a graph. Allocations in `poisoned` (None: all) hold pattern `which`."""
        self._fresh()
        kept_so_far = ((tensor, shadow) for tensor, _, shadow in self._kept() if not shadow.written.all())
        earlier = {storage_of(tensor): shadow.copy() for tensor, shadow in kept_so_far}
        recorder = Recorder(self.session, against=against, poisoned=poisoned, which=which, earlier=earlier)
        kept = self._poison_kept(poisoned or set(), which)
        try:
            with _naming("when it was run eagerly"):
                with recorder:
                    result = eager()
                made = returned(result)
            left = self._copies(self._left_in_attributes(recorder._born), made)
            return recorder, Results(made, _written(recorder.saved), values(result), left)
        finally:
            recorder.saved.restore()
            kept.restore()

    def _left_in_attributes(self, born: Mapping[int, None]) -> dict[str, torch.Tensor]:
        found = {path: t for path, t in names.walk(self.engine.roots) if storage_of(t) in born}
        called = names.by_birth([(path, storage_of(t)) for path, t in found.items()], born)
        return {called[path]: tensor for path, tensor in found.items()}

    def _copies(
        self, left: dict[str, torch.Tensor], made: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """What a step left in attributes. An engine that returns something leaves padding there."""
        return {path: clone(tensor) for path, tensor in left.items() if self.engine.is_one or not made}

    def _compare(self, run: Results, eager: Results, again: Results, is_exact: bool) -> dict[str, float]:
        """What the run got wrong: returned values, and elements that the eager pass wrote otherwise.

        What two eager passes do not agree about, like a count of calls, is no result.

        Args:
            is_exact: the run did the very work of the eager pass, and rounding explains nothing.
        """
        off: dict[str, float] = {}
        for name, is_main, value, reference, before, twin in self._contents(run, eager, again):
            is_known = twin is not None and twin.shape == reference.shape
            if is_known and not is_main and is_off(twin, reference, before):
                continue
            same_bits = is_exact and is_known and not apart(twin, reference)
            if error := (apart if same_bits else is_off)(value, reference, before):
                off[name if isinstance(name, str) else self._called(name)] = error
        if self.engine.is_one:
            other = unlike(run, eager) - unlike(eager, again)
            other |= elsewhere(run, eager, again)
            off |= dict.fromkeys(sorted(other), inf)
        return off

    def _contents(self, run: Results, eager: Results, again: Results) -> Iterator[tuple[Any, ...]]:
        """Of each tensor that the passes made or wrote: its name, or itself; whether it is a main result;
        what it holds after the run, after the eager pass, before both, and after the eager pass again.
        """
        is_one, main = self.engine.is_one, eager.first()
        for path, reference in eager.made.items():
            if path in run.made:
                value = run.made[path] if is_one else padding_cut(run.made[path], reference)
                yield path, path in main, value, reference, None, again.made.get(path)
        twins = {key_of(written.tensor): written.after for written in again.written}
        for tensor, *seen in self._memory(run, eager):
            key = key_of(tensor)
            contents = [*seen, twins.get(key)]
            if not is_one:  # rows behind the batch are nobody's; a step that was captured itself has none
                mine = changed(contents[2], contents[1])
                contents = [None if content is None else content[mine] for content in contents]
            yield tensor, key in main, *contents

    def _memory(self, run: Results, eager: Results) -> Iterator[tuple[Any, ...]]:
        """Memory that was written: what it holds after the run, after the eager pass, and held before both.

        That is what the eager pass writes, and of a step that was captured itself what its graphs write.
        """
        others = []
        if self.engine.is_one:
            seen = {key_of(written.tensor) for written in eager.written}
            beside = [written for written in run.written if key_of(written.tensor) not in seen]
            # What nobody can name is scratch memory of a library: nobody reads it.
            others = [written for written in beside if self._name_of(written.tensor)]
        tensors = [written.tensor for written in (*eager.written, *others)]
        references = [w.after for w in eager.written] + holding(eager.written, [w.tensor for w in others])
        before = [written.before for written in (*eager.written, *others)]
        return zip(tensors, holding(run.written, tensors), references, before, strict=True)

    def _called(self, tensor: torch.Tensor) -> str:
        return self._name_of(tensor) or f"a tensor of shape {list(tensor.shape)} that the step writes"

    def _name_of(self, tensor: torch.Tensor) -> str | None:
        """What the step calls this memory."""
        named = names.walk(self.engine.roots)
        return next((path for path, held in named if names.covers(held, tensor.data_ptr())), None)

    # ---- memory that nobody wrote ----

    def _kept(self) -> Iterator[tuple[torch.Tensor, Allocation, Shadow]]:
        """What eager passes before the first replay allocated with `empty` and kept."""
        for reference, allocation, shadow in self.made.kept:
            tensor = reference()
            if tensor is not None:
                yield tensor, allocation, shadow

    def _poison_kept(self, second: Set[int], which: int = 1) -> Saved:
        """Give kept memory another pattern where nobody has written it; returns how to undo that.

        The shadow knows which elements were written, except by kernels: there a float still tells.
        """
        saved = Saved()
        for tensor, allocation, shadow in self._kept():
            if -1 - allocation.cell in second and not shadow.written.all():
                saved.save(tensor)
                view = shadow._view(tensor)
                mask = torch.from_numpy(~view).to(tensor.device)
                with torch.inference_mode():
                    held = pattern(tensor.dtype, which, is_checked=self.session.is_checked)
                    tensor.masked_fill_(mask, held)
        return saved

    def _unwritten_in_graphs(self, clean: Results) -> list[Allocation]:
        """Allocations whose pattern a replay lets through to a result."""
        candidates = {a.cell: a for c in self.made.captures for a in c.allocations}
        candidates |= {-1 - a.cell: a for _, a, _ in self._kept()}

        def shows(second: set[int]) -> bool:
            return not agree(self._run(second)[1], clean)

        return _responsible(candidates, shows)

    def _unwritten_between(self, clean: Results, causes: list[Finding]) -> list[Allocation]:
        """The same for two eager passes; an AuditError if the step differs from itself without them."""
        third, results = self._eager(self.engine.eager, frozenset(), [])
        if not agree(results, clean):
            if causes:
                return []
            _refuse_repetition(third.trace, third.trace)
        return self.unwritten_eagerly()

    def unwritten_eagerly(self) -> list[Allocation]:
        """Allocations whose pattern shows in the result of an eager pass."""
        clean, results = self._eager(self.engine.eager, frozenset(), [])
        again, same_results = self._eager(self.engine.eager, frozenset(), [])
        if not agree(results, same_results):
            _refuse_repetition(clean.trace, again.trace)
        candidates = {allocation.cell: allocation for allocation in clean.allocations}

        def shows(second: set[int]) -> bool:
            return not agree(self._eager(self.engine.eager, second, [])[1], results)

        return _responsible(candidates, shows) or self._unwritten_otherwise(clean, results)

    def _unwritten_otherwise(self, clean: Recorder, results: Results) -> list[Allocation]:
        """What an eager pass has read and two patterns do not tell, by further ones."""

        def shows(which: int, second: set[int]) -> bool:
            try:
                return not agree(self._eager(self.engine.eager, second, [], which)[1], results)
            except AuditError:  # the step raises, under this pattern alone
                return True

        for which in FURTHER if clean.read else ():
            found = _responsible(clean.read, partial(shows, which))
            if found:
                return found
        return []


def _written(*saved: Saved) -> list[Written]:
    """What was saved before a pass wrote it, with what it holds now."""
    return [Written(tensor, before, clone(tensor)) for part in saved for tensor, before in part.items()]


def _refuse_to_guess(name: str, trace: Trace) -> None:
    """No result was seen, so none can be wrong, and none right.

    Raises:
        AuditError: names the last work of the step, if it does any.
    """
    work = [event for event in trace.own() if event.is_work]
    if work:
        raise AuditError(
            f"{name} leaves no result that the audit can see: it returns no tensor and writes none that it "
            f"holds; its last work: {work[-1].name} at {trace.place(work[-1])}. Return the result"
        )


def _responsible(candidates: dict[int, Allocation], shows: Callable[[set[int]], bool]) -> list[Allocation]:
    """Those of the candidates that make a difference, by halving; about log2 of their number of runs each."""
    found: list[Allocation] = []
    groups = [set(candidates)]
    while groups and len(found) < _MOST_UNWRITTEN:
        group = groups.pop()
        if not group or not shows(group):
            continue
        if len(group) == 1:
            found.append(candidates[group.pop()])
            continue
        ordered = sorted(group)
        groups += [set(ordered[len(ordered) // 2 :]), set(ordered[: len(ordered) // 2])]
    return found


def _sorted(evidence: Evidence, kinds: Iterable[Found]) -> list[Finding]:
    """Findings in the order in which the eager pass meets them; at one place causes come first (RANK)."""
    found = [(at, kind.RANK, finding) for kind in kinds for at, finding in kind.find(evidence)]
    return [finding for _, _, finding in sorted(found, key=lambda item: item[:2])]


def _require_repeatable(evidence: Evidence, first: Trace, second: Trace) -> None:
    """Two eager passes gave different results: refuse, unless a host value that can be named is the reason.

    Raises:
        AuditError: random numbers, work that grows, or a value that nobody keeps.
    """
    if first.random:
        event = first.random[0]
        raise AuditError(
            f"the step cannot be repeated: {event.name} draws random numbers at {first.place(event)}"
        )
    for event in second.own():
        twin = first.get(event.key)
        if twin is None or _shapes(twin) != _shapes(event):
            if evidence.differs and _shrinks(first, second):
                return
            raise AuditError(
                f"the step cannot be repeated: it does more work each time, first at {second.place(event)}"
            )
        for _, old, new in twin.scalars_with(event):
            if not same(old, new):
                found = explain(first, second, event.key[0], (old, new))
                if found is None or not found.atom.is_state:
                    raise AuditError(
                        f"the step cannot be repeated: {event.name} got {old!r}, then {new!r}, "
                        f"at {second.place(event)}"
                    )
                return


def _refuse_repetition(first: Trace, second: Trace) -> None:
    """Two passes gave different results under the same pattern.

    Raises:
        AuditError: always.
    """
    parted = next((e for e in second.own() if first.get(e.key) is None), None)
    work = [event for event in second.own() if event.is_work]
    event = next(iter([*second.random, *filter(None, [parted]), *work[-1:]]), None)
    seen = (
        f"{event.name} at {second.place(event)}" if event else f"the graph it replays at {second.replayed_at}"
    )
    raise AuditError(f"the step cannot be repeated: other results each time, see {seen}")


def _shapes(event: Event) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in event.tensors]


def _shrinks(first: Trace, second: Trace) -> bool:
    """The first pass used something up: the second does less, and nothing else."""
    return len(second.events) < len(first.events)


def _num_nodes(session: Session, captures: list[Capture]) -> int:
    graphs = [capture_.graph for capture_ in captures if capture_.graph is not None]
    return sum(not any(map(session.cells.holds, node.addresses)) for graph in graphs for node in graph.nodes)


@contextmanager
def _naming(when: str) -> Iterator[None]:
    """Turn whatever a step raises into an AuditError that names the line."""
    try:
        yield
    except (HostSyncError, AuditError, UnwrittenIndex, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() too: what a step raises ends its audit, not the process
        place = _users_line(error) or _users_line(error.__cause__)
        at = f" at {place}: {place.source}" if place else ""
        message = str(error).splitlines()[0] if str(error) else ""
        if isinstance(error, CaptureError):
            raise AuditError(f"the step cannot be captured{at}: {message}") from error
        raise AuditError(f"the step raised {type(error).__name__} {when}{at}: {message}") from error


def _users_line(error: BaseException | None) -> Place | None:
    """The innermost line of the user's that an exception passed through."""
    at = users_frame(error)
    code = at and at.tb_frame.f_code
    return Place(code.co_filename, at.tb_lineno, code.co_name) if at and code else None
