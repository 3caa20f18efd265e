"""What the passes of one audit showed, side by side; the kinds of finding draw their conclusions from it."""

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch

from mrv2lab.audit import names
from mrv2lab.audit.atoms import Atom
from mrv2lab.audit.branches import cause_of, deciding, is_only_given, returned, sources_behind, spots
from mrv2lab.audit.lines import same
from mrv2lab.audit.memory import key_of, num_owners, pattern, put, storage_of
from mrv2lab.audit.passes import Pass, Passes
from mrv2lab.audit.recorder import Capture, Session
from mrv2lab.audit.report import Changed, Finding, Place
from mrv2lab.audit.results import Comparison, Results, agree
from mrv2lab.audit.split import forked
from mrv2lab.audit.trace import Cause, Event, Key, Trace, changed
from mrv2lab.errors import AuditError
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.base import set_within

Findings = Iterator[tuple[int, Finding]]  # each with its place in the eager pass

KEEPERS: ContextVar[tuple[list["Evidence"], ...]] = ContextVar("keepers", default=())
"""Lists of whoever asked for the evidence of audits, see `kept`."""

ASKS_BEFORE: ContextVar[bool] = ContextVar("asks_before", default=False)
"""Whether somebody asks for the results at the inputs of the capture."""


@contextmanager
def kept(*, before: bool = False) -> Iterator[list["Evidence"]]:
    """The evidence of every audit made inside, in order; `before`: also of an eager pass at the inputs of
    the capture."""
    seen: list[Evidence] = []
    with set_within(KEEPERS, (*KEEPERS.get(), seen)), set_within(ASKS_BEFORE, before):
        yield seen


@dataclass
class Evidence:
    """What the passes showed."""

    passes: Passes  # whoever can make more of them
    captures: list[Capture]  # all captures that were made
    run: Trace  # the pass with replays in it, at the varied inputs
    eager_pass: Pass  # the same step without graphs, at the same inputs
    results: Comparison  # what they gave, and what the eager pass gave again
    # numbers and texts before the three and behind each, by path
    left: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
    again: Trace | None = None  # of the third
    found: list[Finding] = field(default_factory=list)  # what the kinds have found that were asked before
    # where another eager pass at the same inputs passed another number: words, and whether state is behind it
    unsteady: dict[Place | None, tuple[str, bool]] = field(default_factory=dict)
    before: Results | None = None  # of an eager pass before the inputs were varied, where that was asked
    whole: Set[str] = frozenset()  # large tensors of which twins compare more than a hash
    idle: set[Changed] = field(default_factory=set)  # frozen values that by themselves change nothing
    is_stuck: bool = False  # an eager pass with values of the capture had no end: no more is asked
    works_with: list[str] = field(default_factory=list)  # memory that differs, and is no result
    of_two: bool = False  # captured and eager work are of two engines: where memory lies says nothing

    @property
    def eager(self) -> Trace:
        return self.eager_pass.trace

    @property
    def session(self) -> Session:
        return self.passes.session

    @property
    def made(self) -> Trace:
        """What was issued outside of captures while the engine made itself ready."""
        return self.passes.made.trace

    @cached_property
    def differs(self) -> dict[str, float]:
        """For each result that the replay got wrong, by how much. With own graphs both passes are alike."""
        if self.eager.replayed():
            return {}
        is_exact = self._is_exact
        passed = (both for old, new, _ in self.pairs() for both in old.scalars_with(new)) if is_exact else ()
        of_numbers = any(not same(old, new) for _, old, new in passed)
        off = self.results.differs(is_exact, of_numbers)
        if off and off.keys() == self.results.off_at.keys() and self._is_to_work_with(self.results.off_at):
            self.works_with, off = list(off), {}
        return off | self.results.doubtful if self.results.doubtful and self._of_other_kernels else off

    @property
    def is_explained(self) -> bool:
        """Whether anything was found but values that change nothing by themselves."""
        return not all(map(self.hangs_on_idle, self.found))

    def hangs_on_idle(self, found: Finding) -> bool:
        """Whether it is about a value that changes nothing by itself, or about what one decides."""
        return not self.idle.isdisjoint({found.changed, found.by})

    def decided(self, event: Event) -> Cause | None:
        """What led only the eager pass to its work."""
        found = (cause_of(one.trace, self.eager, event.key[0]) for one in self.replayed)
        return next(filter(None, found), None)

    def is_idle(
        self, held: Mapping[Key, Mapping[str, Any]], bound: Mapping[str, Any], parted: Set[Key]
    ) -> bool:
        """Whether an eager pass comes to the same with these host values of the capture: what ops get, and
        what paths lead to. Where it does not part from the eager pass by this work, as the capture did, it
        asks something else as well, and nobody can tell.

        Nobody made these values to go together: without a GPU the pass is made in a fork of the process,
        which may raise, hang or count on as it likes.
        """

        def is_same() -> bool:
            try:
                most = 1000 + 4 * len(self.eager.values)
                made = self.passes.eager(held=held, bound=bound, most_lines=most)
            except AuditError:  # of another shape, say
                return False
            if any((made.trace.get(key) is None) is (self.eager.get(key) is None) for key in parted):
                return False
            r, of = self.results, made.results
            if self.session.backend == "emulated":
                return of.is_same(r.eager)
            both = Comparison(of, r.eager, r.again, r.is_one, r.name_of, r.nudged, is_scratch=r.is_scratch)
            return not both.differs(self._is_exact)

        if self.session.backend == "cuda":
            return is_same()
        with suppress(TimeoutError):
            return not self.is_stuck and forked(is_same)
        self.is_stuck = True
        return False

    @cached_property
    def _is_exact(self) -> bool:
        """Whether rounding explains nothing: on the CPU the same kernels give the same bits."""
        return self.results.is_one and self.session.backend == "emulated" and self.does_the_same

    @cached_property
    def doubts(self) -> dict[str, str]:
        """Wrong results that rounding may explain after all, in words."""
        off, results = self.differs, self.results
        if results.sensitive:
            return {
                name: f"one ulp in each op moves {name} by {by:.2g}" for name, by in results.sensitive.items()
            }
        moved = results.moved_as_far(off).items()
        return {name: f"some ulps in each op move {name} by {by:.2g}" for name, by in moved}

    def _is_to_work_with(self, written: Mapping[str, torch.Tensor]) -> bool:
        """Whether the step only works with this memory, beside what it returns: it reads there what it has
        written, and whatever stands in all of it before changes nothing that comes out."""
        if not self.results.eager.returned:
            return False
        if any(names.covers(t, at) for t in written.values() for at in self.passes.read_by_vary):
            return False
        own = {id(t): t for t in written.values() if self.eager.reads_again(t)}
        others = (t for t in written.values() if id(t) not in own)
        if not all(self._is_instead(t, own.values()) for t in others):
            return False
        memory = {storage_of(t): t for t in written.values()}.values()
        wholes = [torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage()) for t in memory]

        def fill() -> None:
            put((whole, torch.full_like(whole, pattern(whole.dtype, 5))) for whole in wholes)

        try:
            return agree(self.passes.run(before=fill, writes=wholes).results, self.results.run)
        except AuditError:  # it was an index
            return False

    def _is_instead(self, tensor: torch.Tensor, own: Collection[torch.Tensor]) -> bool:
        """Whether a graph writes this memory where an eager pass writes its own: buffers that take turns."""
        both = (two for one, event, _ in self.pairs() for two in one.tensors_with(event))
        written = [(old, new) for old, new in both if old and new and old.written and new.written]
        there = (new.address for old, new in written if names.covers(tensor, old.address))
        return any(names.covers(one, at) for at in there for one in own)

    @cached_property
    def _of_other_kernels(self) -> bool:
        """Whether a graph captured at these inputs launches others: then rounding is not all that differs."""
        own = [n.label for one in self.replayed if one.graph for n in self.session.nodes(one.graph)]
        return self._fresh is not None and own != [node.label for node in self._fresh.nodes]

    @cached_property
    def left_behind(self) -> dict[str, tuple[Any, Any]]:
        """Numbers and texts that eager passes leave in Python, and the replay does not: both values. Both
        passes the same, or each another one where the replay has changed nothing."""
        before, run, eager, again = self.left
        unchanged = {path for path in before if path in run and same(before[path], run[path])}
        twice = {path for path in eager if path in again and same(eager[path], again[path])}
        if self.eager.replayed():  # then all three are the same step
            twice = set()
        kept = [path for path in eager if path in twice or path in unchanged]
        paths = (path for path in kept if path in run and not same(run[path], eager[path]))
        return {path: (run[path], eager[path]) for path in paths}

    @cached_property
    def repeats(self) -> bool:
        return agree(self.results.eager, self.results.again)

    @property
    def draws_on(self) -> bool:
        """Whether two eager passes have drawn other random numbers: that their results agree is chance."""
        return self.again is not None and self.eager.drawn_from != self.again.drawn_from

    @property
    def afresh(self) -> CapturedGraph | None:
        """The same step captured anew at these inputs, where that can explain anything."""
        return self._fresh if self.differs else None

    @cached_property
    def _fresh(self) -> CapturedGraph | None:
        return self.passes.capture_afresh()

    @cached_property
    def done(self) -> dict[Key, tuple[Event, Trace]]:
        """What the device did in `run`, by key: what graphs replayed, and what was issued beside them."""
        done: dict[Key, tuple[Event, Trace]] = {}
        for event in self.run.events:
            if isinstance(event, Event):
                done[event.key] = event, self.run
            elif capture := self.by_graph.get(id(event)):
                done |= {one.key: (one, capture.trace) for one in capture.trace.own() if one.in_graph}
        return done

    @cached_property
    def num_done(self) -> Counter[str]:
        """How often the device did in `run` what has this name: all of a graph, each time it was replayed."""
        done: Counter[str] = Counter()
        for event in self.run.events:
            capture = None if isinstance(event, Event) else self.by_graph.get(id(event))
            own = (one for one in capture.trace.own() if one.in_graph) if capture else [event]
            done.update(one.name for one in own if isinstance(one, Event))
        return done

    @cached_property
    def by_graph(self) -> dict[int, Capture]:
        return {id(capture.graph): capture for capture in self.captures}

    @cached_property
    def replayed(self) -> list[Capture]:
        return [self.by_graph[id(graph)] for graph in self.run.replayed() if id(graph) in self.by_graph]

    def pairs(self) -> Iterator[tuple[Event, Event, Trace]]:
        """The same moment captured and eager, where a graph did it; in order of the eager pass.

        Where a line does the same thing more often in one pass than in the other, as an op in C++ may that
        allocates once, nobody can tell which of them belong together.
        """
        for event in self.eager.own():
            captured, trace = self.done.get(event.key, (None, None))
            if captured is None or trace is None or trace is self.run:
                continue
            if trace.turns(event.key) == self.eager.turns(event.key):
                yield captured, event, trace

    def missing(self) -> list[Event]:
        """Eager work, making constants included, that nothing did at the same moment of the run."""
        made = (event for event in self.eager.own() if event.is_work or event.name == "aten.lift_fresh")
        return [event for event in made if event.key not in self.done]

    def extra(self) -> list[tuple[Event, Trace]]:
        """Replayed work that the eager pass did not do."""
        graphs = (both for both in self.done.values() if both[0].is_work and both[1] is not self.run)
        return [(event, trace) for event, trace in graphs if self.eager.get(event.key) is None]

    @cached_property
    def in_both_arms(self) -> list[tuple[Event, Event, Trace]]:
        """As `pairs`, of the same op on the same operands at two lines, as of both arms of a branch. With
        the same numbers, or with others of which nobody can tell what they mean."""
        known, others = dict[Key, Key](), defaultdict[Any, list[Event]](list)
        signed = partial(_signed, has_places=not self.of_two)
        for event, operands in signed(self.done.values(), {}):
            if self.eager.get(event.key) is None:
                others[operands].append(event)
        found = []
        for event, operands in signed(((one, self.eager) for one in self.eager.own()), known):
            for twin in others[operands] if event.key not in self.done else ():
                is_same = all(same(old, new) for _, old, new in twin.scalars_with(event))
                if is_same or event.name in self.session.opaque:
                    others[operands].remove(twin)
                    known[event.key] = twin.key
                    found.append((twin, event, self.done[twin.key][1]))
                    break
        return found

    @cached_property
    def does_the_same(self) -> bool:
        """Whether graphs did the very work of the eager pass on the same memory: no sum in another order."""
        if self.missing() or self.extra():
            return False
        arguments = (both for captured, event, _ in self.pairs() for both in captured.tensors_with(event))
        memory = ([t and (t.shape, t.is_own, t.is_own or t.address) for t in both] for both in arguments)
        return all(old is not None and old == new for old, new in memory)

    @cached_property
    def lost_inside(self) -> Counter[str]:
        """Kernels that only a graph captured anew holds, where Python issued the same work for both, of the
        same shapes and strides. An op in C++ has then launched them in one case and not in the other."""
        both = (pair for one, event, _ in self.pairs() if event.is_work for pair in one.tensors_with(event))
        is_turned = any(old and new and old.stride != new.stride for old, new in both)
        if self.missing() or is_turned or self.shaped is not None or self.afresh is None:
            return Counter()
        own = (node for one in self.replayed if one.graph for node in self.session.nodes(one.graph))
        return self.afresh.kernels() - Counter(node.label for node in own)

    @cached_property
    def shaped(self) -> tuple[Event, "Reason"] | None:
        """The first eager work that gets other shapes than in the graph, and the host value behind that."""
        for captured, event, trace in self.pairs():
            both = [(old, new) for old, new in captured.tensors_with(event) if old and new]
            is_other = event.is_work and any(old.shape != new.shape for old, new in both)
            if (
                is_other
                and (reason := explain(trace, self.eager, event.key[0], None, event.spot)) is not None
            ):
                return event, reason
        return None

    def given_otherwise(self) -> Iterator[tuple[Event, Event, Trace]]:
        """Pairs of the same op of which one was given a tensor and the other none."""
        for captured, event, trace in self.pairs():
            if {t.label for t in captured.tensors} != {t.label for t in event.tensors}:
                yield captured, event, trace

    def order(self, position: int) -> int:
        """Where in the eager pass something happens, for sorting."""
        return self._order.get(position, len(self._order))

    def at(self, position: int) -> tuple[int, Place | None]:
        """Where in the eager pass something happens, and the line."""
        return self.order(position), self.session.positions.place(position)

    @cached_property
    def _order(self) -> dict[int, int]:
        return {position: i for i, position in enumerate(self.eager.values)}

    @cached_property
    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Every tensor that can be reached from the step now."""
        return list(names.walk(self.passes.engine.roots))

    @cached_property
    def by_address(self) -> names.Ranges[tuple[str, torch.Tensor]]:
        return names.by_address(self.named)

    def is_owned(self, address: int) -> bool:
        """Whether somebody whom a walk from the step does not meet still holds memory that a graph uses, and
        not only the audit itself."""
        known = (memory for one in self.captures for memory in one.kept.values())
        memory = next((s for s in known if 0 <= address - s.data_ptr() < s.nbytes()), None)
        if memory is None or not num_owners(memory):
            return False
        gc.collect()  # what nobody reaches owns nothing
        return num_owners(memory) > self.passes.num_own(memory)

    def read_by_graphs(self) -> Iterator[tuple[Capture, torch.UntypedStorage]]:
        """Memory from outside of all captures that graphs only read."""
        own = {storage for capture in self.captures for storage in capture.born}
        own |= {storage_of(tensor) for capture in self.captures for tensor in capture.written}
        for capture in self.captures:
            yield from ((capture, memory) for at, memory in capture.kept.items() if at not in own)

    def let_go(self, address: int) -> Place | None:
        """Where a tensor ended last on memory that a graph reads."""
        if exact := next((one.let_go[address] for one in self.captures if address in one.let_go), None):
            return exact  # mostly it begins there
        ends = ((at, place, one.kept[at]) for one in self.captures for at, place in one.let_go.items())
        return next((place for at, place, memory in ends if at <= address < at + memory.nbytes()), None)

    def called(self, tensor: torch.Tensor) -> str:
        """What the step calls a tensor, or a variable at capture; or else its shape."""
        variables = (capture.called.get(storage_of(tensor)) for capture in self.captures)
        local = next(filter(None, variables), None)
        return self.results.name_of(tensor) or local or f"a tensor of shape {list(tensor.shape)}"

    def view_called(self, tensor: torch.Tensor) -> str:
        """The same, of one of several views of one memory."""
        key = key_of(tensor)
        if exact := next((path for path, one in self.named if key_of(one) == key), ""):
            return exact
        is_part = tensor.nbytes < tensor.untyped_storage().nbytes()
        return f"a part of {self.called(tensor)}" if is_part else self.called(tensor)

    def user(self, tensor: torch.Tensor, is_write: bool = False) -> tuple[int, Place | None]:
        """The first work that reads a tensor, or the last that writes it, and its place in the pass; of a
        view that nothing reads by itself, of its memory."""
        for begin in (tensor.data_ptr(), storage_of(tensor)):
            if (found := self._user(range(begin, tensor.data_ptr() + tensor.nbytes), is_write)) is not None:
                return found
        return 0, None

    def _user(self, span: range, is_write: bool) -> tuple[int, Place | None] | None:
        def uses(event: Event) -> bool:
            return any(t.written is is_write and t.address in span for t in event.tensors)

        for trace in (self.eager, *(capture.trace for capture in self.replayed)):
            if users := list(filter(uses, trace.own())):
                event = users[-1 if is_write else 0]
                return self.eager.when(event) if trace is self.eager else 0, trace.place(event)
        return None

    def path(self, address: int) -> tuple[str, torch.Tensor] | None:
        """The shortest path to the tensor at an address."""
        return self.by_address.at(address)


def _signed(
    events: Iterable[tuple[Event, Trace]], known: dict[Key, Key], has_places: bool
) -> Iterator[tuple[Event, Any]]:
    """Work in order, with its name and the work that its operands come from, by its key or the one that is
    `known` to be as good; memory that was there before is its address, if that says anything."""
    makers: dict[int, Any] = {}
    for event, trace in events:
        if event.is_work:
            # Of what the pass has made, and nobody knows how, none is the same as any other.
            before = (
                makers.get(t.address, object() if t.is_own else t.address * has_places) for t in event.tensors
            )
            looks = ((t.label, t.shape, t.stride, t.written) for t in event.tensors)
            yield event, (event.name, event.grid, *zip(before, looks, strict=True))
        if event.sort != "view":
            made = (one.address for one in trace.made.get(event.key, ()))
            written = (tensor.address for tensor in event.tensors if tensor.written)
            maker = event.sort if event.sort == "alloc" else known.get(event.key, event.key)
            makers.update(dict.fromkeys([*made, *written], maker))


class Reason(NamedTuple):
    """The host value behind a difference, what it was and is, and the position that read it."""

    atom: Atom
    old: Any
    new: Any
    position: int

    @property
    def cause(self) -> Cause:
        return self.atom.text, self.old, self.new, self.position


_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


def explain(
    old: Trace, new: Trace, position: int, values: tuple[Any, Any] | None, spot: int = -1
) -> Reason | None:
    """The host value behind a difference at a line; of `values` that were passed, if it is one of values.

    First comes a value that outlives the function and is exactly what was passed; then one that the very
    expression uses; then a local variable that is exactly what was passed; then what callers used, the
    innermost first. Only then what a function saw that the line calls: what was passed, or else the first;
    and what was passed exactly and stands beside the expression in its statement.

    Args:
        spot: the instruction at the line, as of `Event`; without one any expression of it may be meant.
    """
    given = old, new, position, values, spot
    return _explained(*given, deciding) or _explained(*given, changed)


def _explained(
    old: Trace,
    new: Trace,
    position: int,
    values: tuple[Any, Any] | None,
    spot: int,
    differing: Callable[..., Any],
) -> Reason | None:
    def is_exact(before: Any, after: Any) -> bool:
        return values is not None and same(before, values[0]) and same(after, values[1])

    found: list[tuple[int, Reason]] = []
    beside: list[Reason] = []  # in the statement, and not in the expression
    for at, spot_ in spots(new, position, spot):
        near = sources_behind(new, at, spot_)
        for atom, before, after in differing(old, new, at):
            reason, exact = Reason(atom, before, after, at), is_exact(before, after)
            if near is None or atom.text in near:
                ranks = (
                    exact and atom.is_state,
                    at == position and atom.is_state,
                    exact,
                    atom.is_state,
                    True,
                )
                found.append((ranks.index(True), reason))
            elif exact:
                beside.append(reason)
    if found:
        rank, reason = min(found, key=lambda item: item[0])
        if rank != 1 or not is_only_given(new, position, reason.atom.text):
            return reason
        given = reason.old, reason.new
        within = (Reason(atom, a, b, at) for at, atom, a, b in returned(old, new, position, given))
        within = (one for one in within if not all(map(same, one[1:3], reason[1:3])))  # by another way
        return min(within, key=lambda one: not is_exact(one.old, one.new), default=reason)
    positions, here = new.lines.positions, position
    while here and positions.code(here).co_name in _COMPREHENSIONS:  # what it goes through its caller made
        here = positions.parent(here)
    calls = positions.inside(here)
    called = (at for at in new.values if at in calls)
    inside = (Reason(atom, a, b, at) for at in called for atom, a, b in differing(old, new, at))
    state = (reason for reason in inside if reason.atom.is_state)  # a property, or a function that it calls
    beside.sort(key=lambda reason: not reason.atom.is_state)
    last = next(iter(beside), None)
    return min(state, key=lambda reason: not is_exact(reason.old, reason.new), default=last)
