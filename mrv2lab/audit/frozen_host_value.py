"""frozen-host-value: Python read a value at capture, decided by it, and the value has changed since."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from enum import Enum
from itertools import chain, islice, takewhile
from types import BuiltinFunctionType, CodeType
from typing import Any, NamedTuple

import torch

from mrv2lab.audit.atoms import MISSING, SCALARS, Described
from mrv2lab.audit.branches import (
    behind_locals,
    cause_of,
    deciding,
    deciding_near,
    handed_down,
    is_made_here,
    led_to,
    parted_before,
    spots,
    stored_at,
    turned,
)
from mrv2lab.audit.evidence import Evidence, Findings, Reason, explain
from mrv2lab.audit.lines import same
from mrv2lab.audit.passes import SETTING
from mrv2lab.audit.report import Changed, Finding, Place, changed_as
from mrv2lab.audit.trace import Cause, Event, Key, TensorArgument, Trace, is_elsewhere

KIND, SHORT, RANK = "frozen-host-value", "host", 0
_RUN = (CodeType, BuiltinFunctionType, Described)
_PLAIN = (*SCALARS, slice, range, Enum, torch.dtype, torch.device)
_HOSTS = " value of the host's"
_LONG = 200  # characters
ASKED = "differ"
_MOST_ROUNDS = 4
_MOST_PASSES = 32  # eager ones, to ask which numbers change nothing
_ADDRESS = 1 << 32  # of an integer: it may be one, or a handle, and what it led to is gone


class Other(NamedTuple):
    """How an eager pass gets a host value of the capture."""

    held: dict[Key, dict[str, Any]]  # what ops are given, by parameter
    bound: dict[str, Any]  # what can be reached from the step, by path
    parted: set[Key]  # what the pass is then to do, or to leave, as the capture did


class Passed(NamedTuple):
    """A finding about what work was given, and where in the eager pass it is told."""

    at: int
    finding: Finding
    key: Key  # of the work
    label: str | None = None  # of a number that an eager pass can be given instead
    old: Any = None  # that number, as it was at capture


def find(evidence: Evidence) -> Findings:
    """Values that were passed to captured work, and values that decided which work was captured.

    A number that was passed and that no line explains is reported only if nothing else is: where another
    value is frozen, such numbers are shapes that follow from it. So it is with shapes that no number tells,
    as of a slice that is left out where it is the whole.
    """
    pairs, explained = list(evidence.pairs()), list[tuple[int, Finding]]()
    known = set[tuple[Key, str | None]]()
    for _ in range(_MOST_ROUNDS):  # without what changes nothing others may be named
        passed = [found for pair in pairs for found in _passed(evidence, *pair)]
        parted = [*_parted(evidence)]
        others = [*_decided(evidence, parted), *_inside(evidence)]
        if evidence.differs and not evidence.passes.draws_on:
            ways = _ways(evidence, passed, [one for _, one in others], parted)
            evidence.idle |= (idle := _idle(evidence, ways))
            evidence.eager.innocent |= idle
        known |= {(one.key, one.label) for one in passed}
        told = [*((one.at, one.finding) for one in passed), *others]
        told = [both for both in told if not (explained and _is_of(both[1], evidence.idle))]
        explained += told
        if not told or any(one.changed not in evidence.idle for _, one in told):
            break
    explained = [*_in_order(evidence, explained)]
    yield from (found for found in explained if found[1].changed in evidence.idle)
    explained = [found for found in explained if found[1].changed not in evidence.idle]
    explained = explained or [found for pair in pairs for found in _unexplained(evidence, *pair, known)]
    yield from explained
    if evidence.shaped is not None and not explained:
        event, reason = evidence.shaped
        then, where = f"; it shapes what {event.name} gets", evidence.eager.place(event)
        yield evidence.eager.when(event), finding(evidence, reason.cause, then, where)
    elif not explained:
        yield from islice(chain(_reshaped(evidence), _rearranged(evidence), _alone(evidence)), 1)


def _is_of(found: Finding, idle: Set[Changed]) -> bool:
    """Whether it is about a value that changes nothing, or what was made of it: a branch, a variable."""
    words = (repr(found.change) == change for _, change in idle)
    is_passed_on = found.subject.isidentifier() and any(words)
    return is_passed_on or any(subject in found.subject for subject, _ in idle)


def _in_order(evidence: Evidence, found: Iterable[tuple[int, Finding]]) -> Findings:
    """Behind all else stand values that change nothing by themselves, as bounds do that nothing reaches, or a
    branch to work that comes to nothing."""
    behind = len(evidence.eager.values) + 1
    for at, one in found:
        if one.changed in evidence.idle:
            at, one = behind + at, replace(one, evidence=f"{one.evidence}; by itself it changes nothing")
        yield at, one


def _ways(
    evidence: Evidence,
    passed: Sequence[Passed],
    others: Sequence[Finding],
    parted: Sequence[tuple[Cause, Event]],
) -> dict[Changed, Other]:
    """How eager passes get values of the capture: those that can be reached are bound there; what ops alone
    were passed is handed to these."""
    found = dict[Changed, Other]()
    untried = {one.changed for one in others} | {one.finding.changed for one in passed if one.label is None}
    for one in passed:
        if one.label is not None and one.finding.changed not in untried:
            other = found.setdefault(one.finding.changed, Other({}, {}, set()))
            other.held.setdefault(one.key, {})[one.label] = one.old
    # In a process that uses a GPU values that nobody made to go together may end it.
    changes = {} if evidence.session.backend == "cuda" else _changes(evidence)
    led_to: dict[Changed, set[Key]] = {}
    for cause, event in parted:
        led_to.setdefault(changed_as(*cause[:3]), set()).add(event.key)
    for told in [*(one.finding for one in passed), *others]:
        old, new = told.change or (MISSING, MISSING)
        called = ((path, both) for path, both in changes.items() if is_called(path, told.subject))
        paths = [path for path, both in called if same(both[0], old) and same(both[1], new)]
        if paths and all(map(evidence.passes.binder, paths)):
            held = found[told.changed].held if told.changed in found else {}  # what it was worked out to
            found[told.changed] = Other(held, dict.fromkeys(paths, old), led_to.get(told.changed, set()))
    return found


def is_called(path: str, subject: str) -> bool:
    """Whether a path of `names` may be that of what a line calls so: what it begins with has many names."""
    begin = re.search(r"[.\[]", subject)
    return path.endswith(subject[begin.start() :]) if begin else path == subject


def _idle(evidence: Evidence, ways: Mapping[Changed, Other]) -> set[Changed]:
    """Those that all together change nothing: by halves, as far as passes go."""
    num_left = _MOST_PASSES

    def are_idle(subjects: Collection[Changed]) -> bool:
        return evidence.is_idle(*_together(ways[one] for one in subjects))

    def asked(subjects: Sequence[Changed]) -> list[Changed]:
        nonlocal num_left
        if not subjects or not num_left:
            return []
        num_left -= 1
        if are_idle(subjects):
            return list(subjects)
        half = len(subjects) // 2
        return [*asked(subjects[:half]), *asked(subjects[half:])] if half else []

    found = set(asked(list(ways)))
    if not found or are_idle(found):
        return found
    # Some act together: without one of these the others change nothing.
    rest = {one for one in found if len(found) == 1 or not are_idle(found - {one})}
    return rest if rest and are_idle(rest) else set()


def _together(ways: Iterable[Other]) -> Other:
    found = Other({}, {}, set())
    for one in ways:
        found.bound.update(one.bound)
        found.parted.update(one.parted)
        for key, labels in one.held.items():
            found.held[key] = found.held.get(key, {}) | labels
    return found


def _reshaped(evidence: Evidence) -> Findings:
    """A tensor that has been bound to another part of the same memory: it begins where it did."""
    for captured, event, _ in evidence.pairs():
        both = [(old, new) for old, new in captured.tensors_with(event) if old and new and not new.is_own]
        for old, new in both if event.is_work else ():
            known = (
                (p, t) for p, t in evidence.named if t.data_ptr() == new.address and t.shape == new.shape
            )
            if old.address == new.address and old.shape != new.shape and (held := next(known, None)):
                cause = f"{held[0]}.shape", tuple(old.shape), tuple(new.shape), event.key[0]
                then = f"; {event.name} got that of the capture"
                yield evidence.eager.when(event), finding(evidence, cause, then, evidence.eager.place(event))


def _rearranged(evidence: Evidence) -> Findings:
    """What `vary` has put into a container that the step goes through, or what it calls now. Where several
    have changed, what they lie in; nobody can tell which of two it was."""
    places = (evidence.session.positions.place(position) for position in evidence.eager.values)
    lines = "\n".join({place.source for place in places if place is not None})
    found = {path[:-2]: both for path, both in _changes(evidence).items() if path.endswith(("{}", "()"))}
    found = {path: both for path, both in found.items() if all(isinstance(one, _RUN) for one in both)}
    found = {path: both for path, both in found.items() if _is_named(path, lines)}
    outer = [path for path in found if not any(path != one and path.startswith(one) for one in found)]
    pairs = ((old, event) for old, event, _ in evidence.pairs() if event.is_work)
    others = (
        (e, evidence.eager)
        for old, e in pairs
        if any(old and new and _lay_there(evidence, old, new) for old, new in old.tensors_with(e))
    )
    if len(outer) == 1 and (work := next(chain(_other_work(evidence), others), None)) is not None:
        event, trace = work
        cause = outer[0], *_apart(*map(_told, found[outer[0]])), event.key[0]
        yield evidence.order(event.key[0]), finding(evidence, cause, "", trace.place(event))


def _changes(evidence: Evidence) -> dict[str, tuple[Any, Any]]:
    """What `vary` has changed, by path, as it was and is. Of what has come into reach no part has changed."""
    was, changed = evidence.passes.was, evidence.passes.changed or {}
    new = tuple(f"{path}." for path in changed if was[path] is None and changed[path] is not None)
    return {path: (was[path], now) for path, now in changed.items() if not path.startswith(new)}


def _other_work(evidence: Evidence) -> Iterator[tuple[Event, Trace]]:
    """Work that only one of replay and eager pass has done."""
    yield from ((event, evidence.eager) for event in evidence.missing())
    yield from evidence.extra()


def _alone(evidence: Evidence) -> Findings:
    """Other work where no line shows why, as in a library, and `vary` has changed one value of the host's."""
    if evidence.eager.replayed() or (one := _only_change(evidence)) is None:
        return
    work = next(_other_work(evidence), None)
    if work is None and one[0].startswith(SETTING):  # ops ask for it, in C++
        work = next(((event, evidence.eager) for event in evidence.eager.own() if event.is_work), None)
    if work is not None:
        event, trace = work
        then = f"; no line shows what reads it, and vary() changed no other{_HOSTS}"
        cause = *one, event.key[0]
        yield evidence.order(event.key[0]), finding(evidence, cause, then, trace.place(event))


def _only_change(evidence: Evidence) -> tuple[str, Any, Any] | None:
    """The value of the host's that `vary` has changed, if it is one and no line has read it."""
    both = ((path, *two) for path, two in _changes(evidence).items() if not path.endswith(("{}", "()")))
    hosts = [one for one in both if not any(isinstance(value, tuple | bytes) for value in one[1:])]
    is_plain = len(hosts) == 1 and all(isinstance(value, _PLAIN) for value in hosts[0][1:])
    return hosts[0] if is_plain and not _is_read(evidence, hosts[0][0]) else None


def _is_read(evidence: Evidence, path: str) -> bool:
    """Whether a line has read it in each pass: then it shows whether that has made a difference."""
    atoms = evidence.session.positions.atoms
    traces = [evidence.eager, evidence.run, *(capture.trace for capture in evidence.captures)]
    read = [
        value
        for trace in traces
        for position, values in trace.values.items()
        for atom, value in zip(atoms(position), values, strict=True)
        if atom.is_of(path)
    ]
    return bool(read) and MISSING not in read


def _is_named(path: str, lines: str) -> bool:
    """Whether lines of the step have a word for it, or for the module whose hooks it is."""
    words = [word for word in re.findall(r"[^\W\d]\w*", path.removesuffix(".forward")) if word[0] != "_"]
    return bool(words) and re.search(rf"\b{words[-1]}\b", lines) is not None


def _lay_there(evidence: Evidence, old: TensorArgument, new: TensorArgument) -> bool:
    """Whether work is given another tensor than in the graph, which lay where it is now: it has not moved."""
    if not is_elsewhere(old, new) or (held := evidence.path(new.address)) is None:
        return False
    return evidence.passes.begin.get(held[0]) == held[1].data_ptr()


def _told(value: Any) -> str:
    """Code by its name and line, a function in C++ by its name, and a container by what it holds."""
    if isinstance(value, CodeType):
        return f"{value.co_name} of line {value.co_firstlineno}"
    return value if isinstance(value, str) else str(value.__name__)


def _apart(old: str, new: str) -> tuple[Described, Described]:
    """Two lists without what they begin or end with both."""
    was, now = old.split(", "), new.split(", ")
    same = list(takewhile(lambda both: both[0] == both[1], zip(was, now, strict=False)))
    begin = max(len(same) - 1, 0)
    was, now = was[begin:], now[begin:]
    while len(was) > 2 and len(now) > 2 and was[-2:] == now[-2:]:
        was, now = was[:-1], now[:-1]
    words = (", ".join(["..."] * bool(begin) + part[:8] + ["..."] * (len(part) > 8)) for part in (was, now))
    first, second = map(Described, words)
    return first, second


def _passed(evidence: Evidence, captured: Event, event: Event, trace: Trace) -> Iterator[Passed]:
    eager, position = evidence.eager, event.key[0]
    at, where = eager.when(event), eager.place(event)
    for label, old, new in captured.scalars_with(event):
        if not same(old, new) and (found := explain(trace, eager, position, (old, new), event.spot)):
            is_lasting = found.atom.is_state and not is_made_here(eager, found.position, found.atom.name)
            names = [] if is_lasting else _passed_on(trace, eager, found)
            by = dict(spots(eager, position, event.spot))
            causes = (
                turned(trace, eager, p, name) or behind_locals(trace, eager, p, by.get(p, -1))
                for p, name in names
            )
            behind = next(filter(None, causes), None)
            then = f"; {event.name} got {label}={old!r} at capture, now {new!r}"
            if names and behind is None and (bound := stored_at(eager, *names[-1])):
                then += f"; bound at {bound}: {bound.source}"
            told = finding(evidence, behind or found.cause, then, where)
            yield Passed(at, told, event.key, label if _can_be_held(captured, event, old) else None, old)
    if captured.grid != event.grid and (found := explain(trace, eager, position, None, event.spot)):
        told = finding(evidence, found.cause, f"; it sizes the grid of {event.name}", where)
        yield Passed(at, told, event.key)
    for at, told in _chosen(evidence, captured, event, trace):
        yield Passed(at, told, event.key)


def _can_be_held(captured: Event, event: Event, old: Any) -> bool:
    """Whether an eager pass can be given the number of the capture: it makes no other shape, stands in a list
    of the same length, and leads nowhere."""
    labels = [{label for label, _ in one.scalars} for one in (captured, event)]
    is_alike = event.sort == "op" and captured.shapes == event.shapes and labels[0] == labels[1]
    return is_alike and not (isinstance(old, int) and abs(old) >= _ADDRESS)


def _passed_on(old: Trace, new: Trace, found: Reason) -> list[tuple[int, str]]:
    """A local variable, and those of callers that have passed it on, each with a position of its function."""
    names = [(found.position, found.atom.name)]
    for at in new.lines.positions.chain(found.position)[1:]:
        changes = deciding(old, new, at)
        names += [(at, a.name) for a, *both in changes if all(map(same, both, (found.old, found.new)))]
    return names


def _unexplained(
    evidence: Evidence, captured: Event, event: Event, trace: Trace, known: Set[tuple[Key, str | None]]
) -> Findings:
    for label, old, new in captured.scalars_with(event):
        is_other = not same(old, new) and (event.key, label) not in known
        if is_other and captured.shapes == event.shapes:
            path, one = _held_as(evidence, old, new), _only_change(evidence)
            then = "" if path is None else f", as {path} was and is: no line shows what reads it"
            if path is None and one is not None:
                then = f"; vary() changed {one[0]} from {one[1]!r} to {one[2]!r}, and no other{_HOSTS}"
            cause = f"{label} of {event.name}", old, new, event.key[0]
            yield evidence.eager.when(event), finding(evidence, cause, then, evidence.eager.place(event))


def _held_as(evidence: Evidence, old: Any, new: Any) -> str | None:
    """The one number in reach that was the one at capture and is the other now: a module of torch's may have
    passed it. Another may be the same by chance."""
    then, now = evidence.passes.plain_at_capture, evidence.left[0]
    held = [(path, then[path], now[path]) for path in now if path in then]
    found = [path for path, *both in held if all(map(same, both, (old, new)))]
    if not found and type(old) is type(new) in (int, float):  # as optimizers pass what they subtract
        found = [f"-{path}" for path, *both in held if all(map(same, both, (-old, -new)))]
    return found[0] if len(found) == 1 else None


def _chosen(evidence: Evidence, captured: Event, event: Event, trace: Trace) -> Findings:
    """A host value that picks a tensor, or none: what it picked at capture is still there."""
    for old, new in captured.tensors_with(event):
        given = old or new
        is_unseen = not evidence.of_two and _picked_unseen(evidence, event, old, new)
        is_other = old is None or new is None or is_unseen
        is_other = is_other or (not evidence.of_two and picked_another(evidence, event, old, new))
        if given and is_other and (first := chooser(evidence, event, trace, is_unseen)) is not None:
            then = f"; it chooses what {event.name} gets as {given.label}"
            # Of several that its expression reads nobody can tell which chose this one.
            for found in dict.fromkeys([first, *deciding_near(trace, evidence.eager, first[3], event.spot)]):
                where = evidence.session.positions.place(found[3])
                yield evidence.eager.when(event), finding(evidence, found, then, where)


def chooser(evidence: Evidence, event: Event, trace: Trace, is_unseen: bool = False) -> Cause | None:
    """The host value that picks what an event is given: state, also behind a local variable, or that."""
    position, eager = event.key[0], evidence.eager
    found = explain(trace, eager, position, None, event.spot)
    plain = found and (*found.cause[:3], position)
    if found is not None and found.atom.is_state:
        return plain
    if is_unseen:
        return None
    if found is not None:  # a local variable: it may be that of a loop, of which a branch skips turns
        return led_to(trace, eager, position) or plain
    asked = trace, eager, position, event.spot
    return behind_locals(*asked) or handed_down(*asked)


def picked_another(evidence: Evidence, event: Event, old: Any, new: Any) -> bool:
    """Whether an argument is another tensor of the step's now, while the old one still is one too."""
    if not is_elsewhere(old, new):
        return False
    before, after = evidence.path(old.address), evidence.path(new.address)
    if before is None and after is None:  # where no walk leads: in a coroutine
        return (event.key, new.label) in evidence.eager.still
    return before is not None and after is not None and before[1] is not after[1]


def _picked_unseen(evidence: Evidence, event: Event, old: Any, new: Any) -> bool:
    """Whether an argument comes from where no walk leads, like the table of `functools.cache`."""
    if not (old and new and is_elsewhere(old, new)):
        return False
    is_named = (event.key, new.label) in evidence.eager.moved
    return not is_named and evidence.path(old.address) is None and evidence.path(new.address) is None


def _parted(evidence: Evidence) -> Iterator[tuple[Cause, Event]]:
    """Work that only one of capture and eager pass did, with what led there."""
    in_both = {event.key for pair in evidence.in_both_arms for event in pair[:2]}
    work = [(event, evidence.decided(event)) for event in evidence.missing()]
    work += [(event, cause_of(trace, evidence.eager, event.key[0])) for event, trace in evidence.extra()]
    return ((cause, event) for event, cause in work if cause is not None and event.key not in in_both)


def _decided(evidence: Evidence, parted: Sequence[tuple[Cause, Event]]) -> Findings:
    for is_lost, what in ((True, "left out at capture"), (False, "captured, and not wanted now")):
        causes: dict[Cause, list[str]] = {}
        for cause, event in parted:
            if (evidence.eager.get(event.key) is not None) is is_lost:
                causes.setdefault(cause, []).append(event.name)
        yield from _decisions(evidence, causes, what)


def _inside(evidence: Evidence) -> Findings:
    """What an op that has done other work in C++ was given at capture, and is not given now.

    A branch before the op may move with that and decide nothing. It is named only if what was given is a
    local variable, of which nobody knows who chose it.
    """
    if not evidence.lost_inside:
        return
    for _, event, trace in evidence.given_otherwise():
        position = event.key[0]
        found = explain(trace, evidence.eager, position, None, event.spot)
        cause = found and found.cause
        if found is None or not found.atom.is_state:
            cause = parted_before(trace, evidence.eager, position) or cause
        if cause is not None:
            lost = ", ".join(evidence.lost_inside)
            yield from _decisions(evidence, {cause: [lost]}, f"{event.name} then left out")
            return


def _decisions(evidence: Evidence, causes: dict[Cause, list[str]], consequence: str) -> Findings:
    """One finding for each branch, with the work that hung on it."""
    for cause, work in causes.items():
        then = f"; {consequence}: {', '.join(list(dict.fromkeys(work))[:5])}"
        at, place = evidence.at(cause[3])
        yield at, finding(evidence, cause, then, place)


def finding(evidence: Evidence, cause: Cause, consequence: str, where: Place | None) -> Finding:
    """What a cause was and is, and what hangs on it."""
    subject, old, new, position = cause
    was, now = _short(_beside(old, new)), _short(_beside(new, old))
    text = f"was {was} at capture, is {now} now{consequence}"
    read = evidence.session.positions.place(position)
    if read is not None and where is not None and (read.file, read.line) != (where.file, where.line):
        text += f"; read at {read}"
    return Finding(KIND, subject, text, where, (old, new))


def _short(value: Any) -> str:
    """What Python says of it; of a long text, as of code, its beginning and its end."""
    said = repr(value)
    return said if len(said) <= _LONG else f"{said[: _LONG // 2]} ... {said[-_LONG // 2 :]}"


def _beside(value: Any, other: Any) -> Any:
    """An empty container in the words of the full one that stands beside it."""
    kind, _, length = other.partition(" of length ") if isinstance(other, Described) else ("", "", "")
    return f"{kind} of length 0" if length and value in ("{}", ()) else value
