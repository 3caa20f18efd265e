"""Why two passes did different work: the branch at which they parted, and the host value it asked.

`if e.num_tokens > 0 and e.use_lora:` may find both changed, and only one of them has turned the answer. The
statement's source is worked out over the recorded values, nothing of the user's is run: a value decides if
alone, put among those of the other pass, it changes what an expression comes to. Where that cannot be worked
out, as of a call, every value inside may have decided.
"""

import ast
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import pairwise, takewhile
from typing import Any

import torch

from mrv2lab.audit import atoms
from mrv2lab.audit.atoms import (
    MISSING,
    SCALARS,
    Atom,
    Described,
    Elements,
    assigned_at,
    function_at,
    heads,
)
from mrv2lab.audit.lines import same
from mrv2lab.audit.report import Place
from mrv2lab.audit.trace import Cause, Trace, changed

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def cause_of(old: Trace, new: Trace, position: int) -> Cause | None:
    """The branch that led only one of two passes to a position.

    Looked for from the innermost call outwards: the statement itself, the branches around it, then the
    branches before it that may leave. A branch counts if the passes went different ways there.
    """
    known = new.known_beside(old)
    for at in new.lines.positions.chain(position):
        if at not in known:
            known[at] = _cause_at(old, new, at, known)
        if (found := known[at]) is not None:
            return found
    return None


def _cause_at(old: Trace, new: Trace, at: int, known: dict[Any, Cause | None]) -> Cause | None:
    """The same, of one call. The branches around a line and before it are looked at once for all its turns: a
    loop may have thousands."""
    positions = new.lines.positions
    for statement in positions.statements(at):
        if (found := _at_branch(old, new, [at], statement)) is not None:
            return found
    place = positions.place(at)
    line = positions.call(at), place and place.line
    if line not in known:
        others = (_at_branch(old, new, positions.turns(at, s.lineno), s) for s in _controlling(new, at))
        known[line] = next(filter(None, others), None)
    return known[line]


def parted_before(old: Trace, new: Trace, position: int) -> Cause | None:
    """The nearest branch before a line, in the same call, at which the passes went different ways."""
    line, nodes = _function(new, position)
    before = [n for n in nodes if isinstance(n, ast.If) and (n.end_lineno or 0) < line]
    before.sort(key=lambda n: -n.lineno)
    turns = new.lines.positions.turns
    found = (_at_branch(old, new, turns(position, branch.lineno), branch) for branch in before)
    return next(filter(None, found), None)


def _at_branch(old: Trace, new: Trace, turns: list[int], statement: ast.stmt) -> Cause | None:
    """What a statement asked, at any of its turns, if the passes parted there."""
    both = _of_both(old, new, turns)
    if isinstance(statement, ast.Try):
        return _raised(old, new, both[0], statement) if both else None
    before, after = (_runs(trace, both[0], statement) if both else None for trace in (old, new))
    if not both or (before is not None and before == after):
        return None
    found = next(filter(None, (_asked(old, new, turn) for turn in both)), None)
    if found is not None or before is None:
        return found
    # They have parted here, whatever the source says.
    head, unknown = heads(statement)[0], list[ast.AST]()
    for turn in both:
        line = _Line(old, new, turn)
        unknown = line.unknown(head, isinstance(statement, ast.If | ast.While))
        texts = line.texts_behind(unknown)
        if found := _first([one for one in changed(old, new, turn) if one[0].text in texts], turn):
            return found
    text = ast.unparse(unknown[0] if len(unknown) == 1 else head)
    if isinstance(statement, ast.If):
        if bool(before) is not bool(after):
            return text, bool(before), bool(after), both[0]
        return text, Described(f"true in {before} turns"), Described(f"true in {after} turns"), both[0]
    return _left(old, new, both[0], statement) or (text, f"{before} turns", f"{after} turns", both[0])


def _raised(old: Trace, new: Trace, position: int, statement: ast.Try) -> Cause | None:
    """What was looked up where only one of the passes had to handle an exception."""
    turns = new.lines.positions.turns
    caught = [turn for handler in statement.handlers for turn in turns(position, handler.lineno)]
    if all((turn in old.values) == (turn in new.values) for turn in caught):
        return None
    lines = {node.lineno for part in statement.body for node in ast.walk(part) if isinstance(node, ast.stmt)}
    for line in sorted(lines, reverse=True):
        for turn in _of_both(old, new, turns(position, line)):
            atoms = new.lines.positions.atoms(turn)
            for atom, *values in zip(atoms, old.values[turn], new.values[turn], strict=True):
                if values.count(MISSING) == 1:
                    before, after = ("missing" if value is MISSING else value for value in values)
                    return atom.text, before, after, turn
            if (found := _asked(old, new, turn)) is not None:
                return found
    return None


def _of_both(old: Trace, new: Trace, turns: list[int]) -> list[int]:
    """The turns that ran in both passes."""
    return [turn for turn in turns if turn in old.values and turn in new.values]


def _asked(old: Trace, new: Trace, position: int) -> Cause | None:
    """A host value that has decided, in a statement or inside of what it calls."""
    atoms = deciding(old, new, position)
    found = _first(atoms, position, _called(new, position))
    if found is not None and not any(atom.is_state for atom, _, _ in atoms):
        return _assigned(old, new, position, found[0]) or found
    return _instead(old, new, position, found) or found or _inside(old, new, position)


def _first(atoms: list[tuple[Atom, Any, Any]], position: int, called: Collection[str] = ()) -> Cause | None:
    """The first that outlives its function, of those what is called before what it is given; a local variable
    only if there is no other."""
    if not atoms:
        return None
    atom, before, after = min(atoms, key=lambda found: (not found[0].is_state, found[0].text not in called))
    return atom.text, before, after, position


def _instead(old: Trace, new: Trace, position: int, found: Cause | None) -> Cause | None:
    """What a call returns that is only given what was found: the state that has decided there, if any has."""
    if found is None or not is_only_given(new, position, found[0]):
        return None
    given = found[1], found[2]
    others = ((atom.text, a, b, at) for at, atom, a, b in returned(old, new, position, given))
    return next((one for one in others if not all(map(same, one[1:3], found[1:3]))), None)


def is_only_given(trace: Trace, position: int, text: str) -> bool:
    """Whether a value stands as an argument alone of calls whose lines were seen, in a statement and in what
    its local variables were assigned."""
    worked_out, positions = [*_worked_out(trace, position)], trace.lines.positions
    seen = {positions.code(at).co_name for one, _ in worked_out for at in positions.inside(one)}
    left, is_given = [node for _, nodes in worked_out for node in nodes], False
    while left:
        node = left.pop()
        if _text(node) == text:
            return False
        if isinstance(node, ast.Call) and _is_seen(node, seen):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            is_given = is_given or any(text in _texts(one) for one in given)
            left.append(node.func)
        else:
            left += ast.iter_child_nodes(node)
    return is_given


_NAMELESS = {"__call__", "forward", "<lambda>"}  # what is called by other names than its code has


def _is_seen(node: ast.Call, seen: Set[str]) -> bool:
    """Whether a call is one of those of which lines of these functions were seen."""
    name = _text(node.func).rpartition(".")[2]
    is_torchs = any(hasattr(one, name) for one in (torch, torch.Tensor, torch.nn.functional))
    return name in seen or not (is_torchs or seen.isdisjoint(_NAMELESS))


def returned(
    old: Trace, new: Trace, position: int, given: tuple[Any, Any]
) -> Iterator[tuple[int, Atom, Any, Any]]:
    """The state that has decided what calls of a statement return, and of what its local variables were
    assigned, where their lines were seen. Where what they were `given`, as it was and is, may have decided
    as well, that comes first."""
    positions = new.lines.positions
    inside = {at for one, _ in _worked_out(new, position) for at in positions.inside(one)}
    for at in (at for at in new.values if at in inside and at in old.values):
        if any(isinstance(statement, ast.Return) for statement in positions.statements(at)):
            changes = list(deciding(old, new, at))
            if not any(not atom.is_state and all(map(same, both, given)) for atom, *both in changes):
                yield from ((at, *change) for change in changes if change[0].is_state)


def _worked_out(trace: Trace, position: int) -> Iterator[tuple[int, list[ast.AST]]]:
    """The expressions of a statement, and those that its local variables were assigned, each with the
    position at which it was worked out."""
    positions = trace.lines.positions
    place = positions.place(position)
    nodes = [node for statement in positions.statements(position) for node in atoms.heads(statement)]
    yield position, nodes
    assigned, used = assigned_at(place.file, place.line) if place else {}, {*nodes}
    for name, expression in assigned.items():
        if any(name in _texts(node) for node in used):
            used.add(expression)
            for turn in positions.turns(position, expression.lineno)[-1:]:
                yield turn, [expression]


def _called(trace: Trace, position: int) -> set[str]:
    """The sources of what a statement calls."""
    nodes = (node for statement in trace.lines.positions.statements(position) for node in ast.walk(statement))
    return {_text(node.func) for node in nodes if isinstance(node, ast.Call)}


def behind_locals(old: Trace, new: Trace, position: int, spot: int = -1) -> Cause | None:
    """What decided one of the local variables of a statement, or of one of its expressions, if that is
    state."""
    parts = [n for one in _expressions(new, position, spot) for n in ast.walk(one)]
    loaded = dict.fromkeys(n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return next(filter(None, (_assigned(old, new, position, name) for name in loaded)), None)


def handed_down(old: Trace, new: Trace, position: int, spot: int = -1) -> Cause | None:
    """What decided a variable of a caller's that hands an object down to an expression, if that is state."""
    positions = new.lines.positions
    wanted = _objects(new, position, _expressions(new, position, spot))
    for (at, _), (caller, spot_) in pairwise(spots(new, position, spot)):
        function = positions.function(at)
        call = positions.expression(caller, spot_)
        given = [*_given(call, function, wanted)] if isinstance(call, ast.Call) else []
        wanted = _objects(new, caller, given)
        found = (_assigned(old, new, caller, name) for name in wanted)
        if (cause := next(filter(None, found), None)) is not None or not wanted:
            return cause
    return None


def _objects(trace: Trace, position: int, nodes: Iterable[ast.AST]) -> dict[str, None]:
    """Variables that are read there, but for those that hold a number or a text."""
    loaded = (n.id for one in nodes for n in ast.walk(one) if isinstance(n, ast.Name))
    read, values = trace.lines.positions.atoms(position), trace.values.get(position, ())
    plain = {a.text for a, value in zip(read, values, strict=False) if type(value) in SCALARS}
    return dict.fromkeys(name for name in loaded if name not in plain)


def _given(call: ast.Call, function: ast.AST | None, wanted: Mapping[str, None]) -> Iterator[ast.expr]:
    """The arguments of a call for some parameters of a function."""
    taken = getattr(function, "args", None)
    parameters = [one.arg for one in (*taken.posonlyargs, *taken.args)] if taken else []
    if parameters[:1] in (["self"], ["cls"]):
        del parameters[0]
    yield from (value for name, value in zip(parameters, call.args, strict=False) if name in wanted)
    yield from (keyword.value for keyword in call.keywords if keyword.arg in wanted)


def _assigned(old: Trace, new: Trace, position: int, name: str) -> Cause | None:
    """What decided a local variable: what it was assigned, or a branch that led only one pass to do so."""
    names = [n for n in _function(new, position)[1] if isinstance(n, ast.Name) and n.id == name]
    for line in [n.lineno for n in names if isinstance(n.ctx, ast.Store)]:
        for turn in new.lines.positions.turns(position, line):
            ran = [turn in trace.values for trace in (old, new)]
            found = _state(old, new, turn) if all(ran) else led_to(old, new, turn) if any(ran) else None
            if found is not None:
                return found
    return None


def stored_at(new: Trace, position: int, name: str) -> Place | None:
    """The line before a position at which its function has bound a variable last."""
    line, nodes = _function(new, position)
    names = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    before, positions = [n.lineno for n in names if n.id == name and n.lineno < line], new.lines.positions
    turns = positions.turns(position, max(before)) if before else []
    return positions.place(turns[-1]) if turns else None


def is_made_here(new: Trace, position: int, name: str) -> bool:
    """Whether a variable is a container that its function makes: what it holds does not outlive that."""
    stored = (n for n in _function(new, position)[1] if isinstance(n, ast.Assign))
    made = (n for n in stored if isinstance(n.value, _DISPLAYS))
    return any(isinstance(target, ast.Name) and target.id == name for n in made for target in n.targets)


def turned(old: Trace, new: Trace, position: int, name: str) -> Cause | None:
    """The state that a loop goes through, if a variable of it is meant."""
    loops = (s for s in _controlling(new, position) if isinstance(s, ast.For))
    meant = (s for s in loops if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(s.target)))
    return _state_of(old, new, position, meant)


def led_to(old: Trace, new: Trace, position: int) -> Cause | None:
    """The state that a branch around a line asked: it led only one pass there, or each in another turn."""
    return _state_of(old, new, position, _controlling(new, position))


def _state_of(old: Trace, new: Trace, position: int, statements: Iterable[ast.stmt]) -> Cause | None:
    """The state that these statements asked: of the first that asked any, in whatever turn."""
    turns = (new.lines.positions.turns(position, statement.lineno) for statement in statements)
    found = (_state(old, new, turn) for one in turns for turn in _of_both(old, new, one))
    return next(filter(None, found), None)


def _state(old: Trace, new: Trace, position: int) -> Cause | None:
    """What outlives its function and has decided, in a statement or inside of what it calls."""
    atoms = [change for change in deciding(old, new, position) if change[0].is_state]
    found = _first(atoms, position)
    return _instead(old, new, position, found) or found or _inside(old, new, position)


def _left(old: Trace, new: Trace, position: int, loop: ast.stmt) -> Cause | None:
    """What the last branch asked at which one of the passes left a loop."""
    branches = (node for node in ast.walk(loop) if isinstance(node, ast.If) and _leaves(node))
    turns = (_of_both(old, new, new.lines.positions.turns(position, node.lineno)) for node in branches)
    return next(filter(None, (_asked(old, new, both[-1]) for both in turns if both)), None)


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(part, _LEAVES) for part in ast.walk(node))


def _runs(trace: Trace, position: int, branch: ast.stmt) -> int | None:
    """How often its body ran in the call that the position lies in; None for what is no such branch. Where
    one line holds branch and body nobody can tell."""
    if not isinstance(branch, ast.If | ast.While | ast.For) or branch.body[0].lineno == branch.lineno:
        return None
    return sum(turn in trace.values for turn in trace.lines.positions.turns(position, branch.body[0].lineno))


def _inside(old: Trace, new: Trace, position: int) -> Cause | None:
    """A host value that changed inside a function which the branch calls."""
    inside = new.lines.positions.inside(position)
    called = (at for at in new.values if at in inside and at in old.values) if inside else ()
    decided = ((at, *change) for at in called for change in deciding(old, new, at))
    return next(((atom.text, a, b, at) for at, atom, a, b in decided if atom.is_state), None)


def _function(trace: Trace, position: int) -> tuple[int, list[ast.AST]]:
    """The line of a position, and every node of the function it lies in."""
    place = trace.lines.positions.place(position)
    function = function_at(place.file, place.line) if place else None
    return place.line if place else 0, list(ast.walk(function)) if function else []


def _controlling(trace: Trace, position: int) -> list[ast.stmt]:
    """Statements that decide whether a line runs: those around it, the nearest first, then those that leave.
    A `with` decides no branch, but what runs inside may look at what it has entered."""
    line, nodes = _function(trace, position)
    branches = [n for n in nodes if isinstance(n, ast.If | ast.While | ast.For | ast.Match | ast.Try)]
    entered = [n for n in nodes if isinstance(n, ast.With)]
    around = [n for n in [*branches, *entered] if n.lineno <= line <= (n.end_lineno or 0)]
    before = [n for n in branches if (n.end_lineno or 0) < line and _leaves(n)]
    return [*sorted(around, key=lambda n: -n.lineno), *sorted(before, key=lambda n: -n.lineno)]


_FUNCTIONS: dict[str, Any] = {f.__name__: f for f in (bool, int, float, abs, min, max, sum, any, all, len)}
_DISPLAYS = (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_SINGLE = (type(None), bool)
_KNOWN = (
    *(ast.Constant, ast.BoolOp, ast.IfExp, ast.Tuple, ast.List, ast.Set, ast.UnaryOp, ast.BinOp, ast.Compare),
    *(ast.boolop, ast.unaryop, ast.operator, ast.cmpop, ast.expr_context),
)


def spots(trace: Trace, position: int, spot: int) -> Iterator[tuple[int, int]]:
    """A position and those it was called from, innermost first, each with the instruction that runs there."""
    for at in trace.lines.positions.chain(position):
        yield at, spot
        spot = trace.lines.called_by(at)


def sources_behind(trace: Trace, position: int, spot: int) -> set[str] | None:
    """The sources of all that the expression of an instruction is worked out from, without what other work
    has made; None if it is unknown."""
    positions = trace.lines.positions
    if (node := positions.expression(position, spot)) is None:
        return None
    place = positions.place(position)
    assigned = {**assigned_at(place.file, place.line)} if place else {}
    left, found = [node], set[str]()
    left += [one for statement in positions.statements(position) for one in _deciding_on(statement, node)]
    while left:
        one = left.pop()
        made = _made_by_work(trace, position, one) - {node}
        inside = [] if one in made else list[ast.AST]([one])
        while inside:
            found.add(text := _text(part := inside.pop()))
            left += [assigned.pop(text)] if text in assigned else []
            inside += [inner for inner in ast.iter_child_nodes(part) if inner not in made]
    return found


def deciding_near(old: Trace, new: Trace, position: int, spot: int) -> list[Cause]:
    """The state that has decided in the expression of an instruction; none where that is unknown."""
    near = sources_behind(new, position, spot) or ()
    changes = (change for change in deciding(old, new, position) if change[0].text in near)
    return [(atom.text, a, b, position) for atom, a, b in changes if atom.is_state]


def _deciding_on(statement: ast.stmt, node: ast.expr) -> Iterator[ast.expr]:
    """The parts of a statement that decide whether, or for what, one of its expressions runs."""
    for one in ast.walk(statement):
        match one:
            case ast.IfExp(test=test, body=body, orelse=orelse) if _holds(body, node) or _holds(orelse, node):
                yield test
            # a body on the line of its head
            case ast.If(test=head) | ast.While(test=head) | ast.For(iter=head):
                if _holds(one, node) and not _holds(head, node):
                    yield head
            case ast.BoolOp(values=operands):
                yield from takewhile(lambda operand: not _holds(operand, node), operands[:-1])
            case (
                ast.ListComp(generators=loops)
                | ast.SetComp(generators=loops)
                | ast.GeneratorExp(generators=loops)
            ):
                if _holds(one.elt, node):
                    yield from (part for loop in loops for part in (loop.iter, *loop.ifs))


def _holds(whole: ast.AST, node: ast.AST) -> bool:
    return any(part is node for part in ast.walk(whole))


def _made_by_work(trace: Trace, position: int, node: ast.expr) -> set[ast.AST | None]:
    """The expressions at the lines of one, in the same call, that have issued work."""
    positions, lines = trace.lines.positions, range(node.lineno, (node.end_lineno or node.lineno) + 1)
    known, call = trace.made_at, (positions.call(position), lines)
    if call not in known:
        turns = {turn for line in lines for turn in positions.turns(position, line)}
        work = {(at, spot) for at in turns for spot in trace.spots_of_work.get(at, ())}
        known[call] = {positions.expression(at, spot) for at, spot in work}
    return known[call]


def _expressions(trace: Trace, position: int, spot: int) -> list[ast.AST]:
    """That of an instruction; where it is not known the statements at its line."""
    node = trace.lines.positions.expression(position, spot)
    return [*trace.lines.positions.statements(position)] if node is None else [node]


def deciding(old: Trace, new: Trace, position: int) -> list[tuple[Atom, Any, Any]]:
    """As `changed`, without the values of which the source shows that they made no difference."""
    found, positions = changed(old, new, position), new.lines.positions
    if not found or not position:
        return found
    line, decided = _Line(old, new, position), set[str]()
    for statement in positions.statements(position):
        decided |= line.of_all(atoms.heads(statement), isinstance(statement, ast.If | ast.While))
    return [change for change in found if change[0].text in decided]


class _Line:
    """A line with the values of its atoms in both passes, by their source."""

    def __init__(self, old: Trace, new: Trace, position: int):
        positions = new.lines.positions
        texts = [atom.text for atom in positions.atoms(position)]
        self.old, self.new = (dict(zip(texts, one.values[position], strict=True)) for one in (old, new))
        self.changed = {atom.text for atom, _, _ in changed(old, new, position)}
        place = positions.place(position)
        self.assigned = assigned_at(place.file, place.line) if place else {}
        self.code = positions.code(position)

    def unknown(self, node: ast.AST, asks_truth: bool) -> list[ast.AST]:
        """The parts of a condition that are not known to have come to the same."""
        if isinstance(node, ast.BoolOp):
            return [part for operand in node.values for part in self.unknown(operand, asks_truth)]
        before, after = (self._outcome(node, values, asks_truth) for values in (self.old, self.new))
        return [] if before is not MISSING and same(before, after) else [node]

    def texts_behind(self, nodes: list[ast.AST]) -> set[str]:
        """The sources of what stands in these, and in what their local variables were assigned."""
        found, left = set[str](), list(nodes)
        while left:
            new = _texts(left.pop()) - found
            found |= new
            left += [self.assigned[name] for name in new & self.assigned.keys()]
        return found

    def of_all(self, nodes: Iterable[ast.AST], asks_truth: bool) -> set[str]:
        """The atoms that decided in any of these."""
        return {text for node in nodes for text in self.of(node, asks_truth)}

    def of(self, node: ast.AST, asks_truth: bool) -> set[str]:
        """The atoms that decided what an expression came to, or only whether it was true."""
        if _texts(node).isdisjoint(self.changed | self.assigned.keys()):
            return set()
        before, after = (self._outcome(node, values, asks_truth) for values in (self.old, self.new))
        is_known = before is not MISSING and after is not MISSING
        if is_known and same(before, after):
            return set()
        match node:
            case ast.BoolOp(values=operands):
                return self.of_all(operands, asks_truth)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.of(operand, True)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                answers = [self._outcome(test, values, True) for values in (self.old, self.new)]
                if MISSING in answers:
                    return self.of(test, True) | self.of_all((body, orelse), asks_truth)
                if answers[0] == answers[1]:
                    return self.of(body if answers[0] else orelse, asks_truth)
                return self.of(test, True)
        text = _text(node)
        if MISSING not in (self.old.get(text, MISSING), self.new.get(text, MISSING)):
            keys = [part.slice for part in ast.walk(node) if isinstance(part, ast.Subscript)]
            return self._behind(text, asks_truth) | self.of_all(keys, False)
        if not is_known:
            return self.of_all(ast.iter_child_nodes(node), False)
        inside = [atom.text for atom in atoms.atoms_in(node, self.code) if atom.text in self.changed]
        alone = [text for text in inside if self._turns(node, text, asks_truth, before, after)]
        return {found for text in alone or inside for found in self._behind(text, False)}

    def _behind(self, text: str, asks_truth: bool) -> set[str]:
        """An atom that has changed; of a local variable what decided the expression that it was assigned."""
        found = self.of(self.assigned[text], asks_truth) if text in self.assigned else set()
        return found or {text} & self.changed

    def _turns(self, node: ast.AST, text: str, asks_truth: bool, before: Any, after: Any) -> bool:
        """Whether one atom alone, put among the values of the other pass, changes the outcome."""
        one = self._outcome(node, self.old | {text: self.new[text]}, asks_truth)
        other = self._outcome(node, self.new | {text: self.old[text]}, asks_truth)
        return not (same(one, before) and same(other, after))

    def _outcome(self, node: ast.AST, values: Mapping[str, Any], asks_truth: bool) -> Any:
        """What an expression comes to. MISSING: nobody can tell, or another value may read the same."""
        told = _Told(values)
        tree = ast.fix_missing_locations(ast.Expression(told.of(node)))
        try:
            found = eval(compile(tree, "", "eval"), {"__builtins__": _FUNCTIONS} | told.names)
            found = bool(found) if asks_truth else _plain(found)
        except Exception:
            return MISSING
        return found if _tells_all(found) else MISSING


def _tells_all(found: Any) -> bool:
    """Whether another value would read otherwise: two tensors have the same words."""
    if isinstance(found, tuple):
        return all(map(_tells_all, found))
    return found.is_exact if isinstance(found, Described) else True


class _Kept:
    """A value of which only words or elements were kept. ValueError: these do not tell what is asked."""

    def __init__(self, value: Described | Elements):
        self.value = value

    def __bool__(self) -> bool:
        truth = getattr(self.value, "truth", None)
        if truth is None:
            raise ValueError(self.value)
        return bool(truth)

    def __eq__(self, other: object) -> bool:
        if other is None:
            return False
        both = (self.value, getattr(other, "value", None))
        if not all(isinstance(value, Described) and value.is_exact for value in both):
            raise ValueError(self.value)
        return both[0] == both[1]


def _plain(found: Any) -> Any:
    """Sets and lists as tuples, with what was kept in them."""
    if isinstance(found, tuple | list | set):
        return tuple(map(_plain, found))
    return found.value if isinstance(found, _Kept) else found


@functools.lru_cache(1 << 14)  # nodes of files that have changed since are let go
def _text(node: ast.AST) -> str:
    """The source of an expression; of anything else none."""
    return ast.unparse(node) if isinstance(node, ast.expr) else ""


@functools.lru_cache(1 << 14)  # nodes of files that have changed since are let go
def _texts(node: ast.AST) -> frozenset[str]:
    """The sources of the expressions in a node."""
    return frozenset(map(_text, ast.walk(node)))


class _Told:
    """Puts a name in the place of each value that was kept, and of what Python is not to work out."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = values
        self.names: dict[str, Any] = {}  # with their values; what is not to be worked out has none

    def of(self, node: Any) -> Any:
        """The same node with names in it."""
        if not isinstance(node, ast.AST):
            return [*map(self.of, node)] if isinstance(node, list) else node
        is_text = isinstance(node, ast.expr) and not isinstance(node, ast.Constant)
        value = self.values.get(_text(node), MISSING) if is_text else MISSING
        if value is not MISSING:
            name = f"_{len(self.names)}"
            self.names[name] = _Kept(value) if isinstance(value, Described | Elements) else value
            return ast.Name(name, ast.Load())
        match node:
            case ast.NamedExpr(value=inner):
                return self.of(inner)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name), keywords=[]):
                is_known = name in _FUNCTIONS
            case ast.BinOp(op=ast.Pow() | ast.LShift() | ast.MatMult()):  # may come to something huge
                is_known = False
            case ast.Compare(ops=ops, left=left, comparators=rest) if {ast.Is, ast.IsNot} & {*map(type, ops)}:
                constants = (side.value for side in (left, *rest) if isinstance(side, ast.Constant))
                kept = (self.values.get(_text(side), MISSING) for side in (left, *rest))
                is_known = any(type(value) in _SINGLE for value in (*constants, *kept))
            case _:
                is_known = isinstance(node, _KNOWN)
        if not is_known:
            return ast.Name("_unknown", ast.Load())
        return type(node)(**{name: self.of(value) for name, value in ast.iter_fields(node)})
