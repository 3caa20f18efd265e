"""Which of the values that have changed between two passes made the difference at a line.

`if e.num_tokens > 0 and e.use_lora:` may find both changed, and only one of them has turned the answer. The
statement's source is worked out over the recorded values, nothing of the user's is run: a value decides if
alone, put among those of the other pass, it changes what an expression comes to. Where that cannot be worked
out, as of a call, every value inside may have decided.
"""

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from mrv2lab.audit import atoms
from mrv2lab.audit.atoms import MISSING, Atom, Described, Elements, assigned_at
from mrv2lab.audit.lines import same
from mrv2lab.audit.trace import Trace, changed

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.RShift: operator.rshift,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (bool, int, float, abs, min, max, sum, any, all, len)
}
_SINGLE = (type(None), bool)
_NUMBERS = (bool, int, float)


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
        """MISSING too where another value may read the same."""
        try:
            found = _evaluated(node, values)
            if asks_truth:
                return _truth(found)
        except _Unknown:
            return MISSING
        return MISSING if isinstance(found, Described) and not found.is_exact else found


class _Unknown(Exception):
    """What an expression comes to cannot be told from the values that were kept."""


def _truth(value: Any) -> bool:
    truth = value.truth if isinstance(value, Described) else bool(value)
    if truth is None or isinstance(value, Elements):
        raise _Unknown
    return truth


def _evaluated(node: ast.AST, values: Mapping[str, Any]) -> Any:
    """What an expression comes to. _Unknown: it takes more than operations of numbers and texts."""
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.expr):
        raise _Unknown
    text = ast.unparse(node)
    if text in values:
        if values[text] is MISSING:
            raise _Unknown
        return values[text]

    def of(part: ast.AST) -> Any:
        return _evaluated(part, values)

    match node:
        case ast.BoolOp(op=op, values=operands):
            for operand in operands[:-1]:
                found = of(operand)
                if _truth(found) is isinstance(op, ast.Or):
                    return found
            return of(operands[-1])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return of(body if _truth(of(test)) else orelse)
        case ast.NamedExpr(value=value):
            return of(value)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return tuple(map(of, parts))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(of(operand))
        case ast.UnaryOp(op=op, operand=operand):
            return _applied(_OPERATORS.get(type(op)), _NUMBERS, of(operand))
        case ast.BinOp(left=left, op=op, right=right):
            return _applied(_OPERATORS.get(type(op)), _NUMBERS, of(left), of(right))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = pairwise(map(of, (left, *comparators)))  # as far as Python would work them out
            return all(_compared(compare, *pair) for compare, pair in zip(ops, pairs, strict=True))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            if values.get(name, MISSING) is MISSING:  # not shadowed by a function of the user's
                return _applied(_FUNCTIONS.get(name), (*_NUMBERS, str, tuple), *map(of, arguments))
    raise _Unknown


def _compared(op: ast.cmpop, left: Any, right: Any) -> bool:
    both = (left, right)
    if isinstance(op, ast.Is | ast.IsNot):
        if not any(type(value) in _SINGLE for value in both):
            raise _Unknown
    elif any(isinstance(value, Described | Elements) for value in both):
        is_told = isinstance(op, ast.Eq | ast.NotEq) and (
            None in both or all(isinstance(value, Described) and value.is_exact for value in both)
        )
        if not is_told:
            raise _Unknown
    return bool(_applied(_OPERATORS[type(op)], (object,), *both))


def _applied(function: Callable[..., Any] | None, kinds: tuple[type, ...], *arguments: Any) -> Any:
    is_plain = (
        isinstance(a, kinds) and (object in kinds or not isinstance(a, Described | Elements))
        for a in arguments
    )
    if function is None or not all(is_plain):
        raise _Unknown
    try:
        return function(*arguments)
    except Exception as error:
        raise _Unknown from error
