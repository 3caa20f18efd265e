"""Which of the values that have changed between two passes made the difference at a line.

`if e.num_tokens > 0 and e.use_lora:` may find both changed, and only one of them has turned the answer. The
statement's source is worked out over the recorded values, nothing of the user's is run: a value decides if
alone, put among those of the other pass, it changes what an expression comes to. Where that cannot be worked
out, as of a call, every value inside may have decided.
"""

import ast
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from mrv2lab.audit import atoms
from mrv2lab.audit.atoms import MISSING, Atom, Described, Elements, assigned_at
from mrv2lab.audit.lines import same
from mrv2lab.audit.trace import Trace, changed

_FUNCTIONS: dict[str, Any] = {f.__name__: f for f in (bool, int, float, abs, min, max, sum, any, all, len)}
_SINGLE = (type(None), bool)
_KNOWN = (
    *(ast.Constant, ast.BoolOp, ast.IfExp, ast.Tuple, ast.List, ast.Set, ast.UnaryOp, ast.BinOp, ast.Compare),
    *(ast.boolop, ast.unaryop, ast.operator, ast.cmpop, ast.expr_context),
)


def deciding(old: Trace, new: Trace, position: int) -> list[tuple[Atom, Any, Any]]:
    """As `changed`, without the values of which the source shows that they made no difference."""
    found, positions = changed(old, new, position), new.lines.positions
    place = positions.place(position)
    if not found or place is None:
        return found
    texts = [atom.text for atom in positions.atoms(position)]
    before, after = (dict(zip(texts, trace.values[position], strict=True)) for trace in (old, new))
    moved, assigned = {atom.text for atom, _, _ in found}, assigned_at(place.file, place.line)
    line = _Line(before, after, moved, assigned, positions.code(position))
    decided: set[str] = set()
    for statement in positions.statements(position):
        decided |= line.of_all(atoms.heads(statement), isinstance(statement, ast.If | ast.While))
    return [change for change in found if change[0].text in decided]


class _Line:
    """A line with the values of its atoms in both passes, by their source."""

    def __init__(self, old: Any, new: Any, changed: set[str], assigned: Mapping[str, ast.expr], code: Any):
        self.old, self.new, self.changed, self.assigned, self.code = old, new, changed, assigned, code

    def of_all(self, nodes: Iterable[ast.AST], asks_truth: bool) -> set[str]:
        """The atoms that decided in any of these."""
        return {text for node in nodes for text in self.of(node, asks_truth)}

    def of(self, node: ast.AST, asks_truth: bool) -> set[str]:
        """The atoms that decided what an expression came to, or only whether it was true."""
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
        text = ast.unparse(node) if isinstance(node, ast.expr) else ""
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
        tree = ast.fix_missing_locations(ast.Expression(told.visit(deepcopy(node))))
        try:
            found = eval(compile(tree, "", "eval"), {"__builtins__": _FUNCTIONS} | told.names)
            found = bool(found) if asks_truth else _plain(found)
        except Exception:
            return MISSING
        return MISSING if isinstance(found, Described) and not found.is_exact else found


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


class _Told(ast.NodeTransformer):
    """Puts a name in the place of each value that was kept, and of what Python is not to work out."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = values
        self.names: dict[str, Any] = {}  # with their values; what is not to be worked out has none

    def visit(self, node: ast.AST) -> Any:
        is_text = isinstance(node, ast.expr) and not isinstance(node, ast.Constant)
        value = self.values.get(ast.unparse(node), MISSING) if is_text else MISSING
        if value is not MISSING:
            name = f"_{len(self.names)}"
            self.names[name] = _Kept(value) if isinstance(value, Described | Elements) else value
            return ast.Name(name, ast.Load())
        match node:
            case ast.NamedExpr(value=inner):
                return self.visit(inner)
            case ast.Name(id=name) | ast.Call(func=ast.Name(id=name), keywords=[]):
                is_known = name in _FUNCTIONS
            case ast.BinOp(op=ast.Pow() | ast.LShift() | ast.MatMult()):  # may come to something huge
                is_known = False
            case ast.Compare(ops=ops, left=left, comparators=rest) if {ast.Is, ast.IsNot} & {*map(type, ops)}:
                constants = (side.value for side in (left, *rest) if isinstance(side, ast.Constant))
                kept = (self.values.get(ast.unparse(side), MISSING) for side in (left, *rest))
                is_known = any(type(value) in _SINGLE for value in (*constants, *kept))
            case _:
                is_known = isinstance(node, _KNOWN)
        return self.generic_visit(node) if is_known else ast.Name("_unknown", ast.Load())
