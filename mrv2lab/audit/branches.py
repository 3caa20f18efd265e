"""Why two passes did different work: the branch at which they parted, and the host value it asked."""

import ast
from collections.abc import Iterable
from typing import Any

from mrv2lab.audit.atoms import MISSING, Atom, function_at, heads
from mrv2lab.audit.deciding import deciding
from mrv2lab.audit.trace import Trace, changed

Cause = tuple[str, Any, Any, int]  # subject, value in the first pass and in the second, position of a branch

_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def cause_of(old: Trace, new: Trace, position: int) -> Cause | None:
    """The branch that led only one of two passes to a position.

    Looked for from the innermost call outwards: the statement itself, the branches around it, then the
    branches before it that may leave. A branch counts if the passes went different ways there.
    """
    positions = new.lines.positions
    for at in positions.chain(position):
        here = [([at], statement) for statement in positions.statements(at)]
        here += [(positions.turns(at, s.lineno), s) for s in _controlling(new, at)]
        for turns, statement in here:
            if (found := _at_branch(old, new, turns, statement)) is not None:
                return found
    return None


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
    if found := next(filter(None, (_first(changed(old, new, turn), turn) for turn in both)), None):
        return found
    text = ast.unparse(heads(statement)[0])
    if isinstance(statement, ast.If):
        return text, bool(before), bool(after), both[0]
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
    found = _first(atoms, position)
    if found is not None and not any(atom.is_state for atom, _, _ in atoms):
        return _assigned(old, new, position, found[0]) or found
    return found or _inside(old, new, position)


def _first(atoms: list[tuple[Atom, Any, Any]], position: int) -> Cause | None:
    """The first that outlives its function; a local variable only if there is no other."""
    if not atoms:
        return None
    atom, before, after = min(atoms, key=lambda found: not found[0].is_state)
    return atom.text, before, after, position


def behind_locals(old: Trace, new: Trace, position: int) -> Cause | None:
    """What decided one of the local variables of a statement, if that is state."""
    parts = [n for statement in new.lines.positions.statements(position) for n in ast.walk(statement)]
    loaded = dict.fromkeys(n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return next(filter(None, (_assigned(old, new, position, name) for name in loaded)), None)


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
    return _first(atoms, position) or _inside(old, new, position)


def _left(old: Trace, new: Trace, position: int, loop: ast.stmt) -> Cause | None:
    """What the last branch asked at which one of the passes left a loop."""
    branches = (node for node in ast.walk(loop) if isinstance(node, ast.If) and _leaves(node))
    turns = (_of_both(old, new, new.lines.positions.turns(position, node.lineno)) for node in branches)
    return next(filter(None, (_asked(old, new, both[-1]) for both in turns if both)), None)


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(part, _LEAVES) for part in ast.walk(node))


def _runs(trace: Trace, position: int, branch: ast.stmt) -> int | None:
    """How often its body ran in the call that the position lies in; None for what is no such branch.

    Where one line holds branch and body nobody can tell.
    """
    if not isinstance(branch, ast.If | ast.While | ast.For) or branch.body[0].lineno == branch.lineno:
        return None
    return sum(turn in trace.values for turn in trace.lines.positions.turns(position, branch.body[0].lineno))


def _inside(old: Trace, new: Trace, position: int) -> Cause | None:
    """A host value that changed inside a function which the branch calls."""
    called = (at for at in new.values if at in old.values and position in new.lines.positions.chain(at)[1:])
    decided = ((at, *change) for at in called for change in deciding(old, new, at))
    return next(((atom.text, a, b, at) for at, atom, a, b in decided if atom.is_state), None)


def _function(trace: Trace, position: int) -> tuple[int, list[ast.AST]]:
    """The line of a position, and every node of the function it lies in."""
    place = trace.lines.positions.place(position)
    function = function_at(place.file, place.line) if place else None
    return place.line if place else 0, list(ast.walk(function)) if function else []


def _controlling(trace: Trace, position: int) -> list[ast.stmt]:
    """Statements that decide whether a line runs: those around it, the nearest first, then those that leave.

    A `with` decides no branch, but what runs inside may look at what it has entered.
    """
    line, nodes = _function(trace, position)
    branches = [n for n in nodes if isinstance(n, ast.If | ast.While | ast.For | ast.Match | ast.Try)]
    entered = [n for n in nodes if isinstance(n, ast.With)]
    around = [n for n in [*branches, *entered] if n.lineno <= line <= (n.end_lineno or 0)]
    before = [n for n in branches if (n.end_lineno or 0) < line and _leaves(n)]
    return [*sorted(around, key=lambda n: -n.lineno), *sorted(before, key=lambda n: -n.lineno)]
