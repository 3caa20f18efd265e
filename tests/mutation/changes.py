"""Which lines are changed, and into what: cosmic-ray's operators, and one of ours that drops a statement."""

import ast
import hashlib
from collections import defaultdict
from itertools import islice, starmap
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Name

PACKAGES = ("graphs/", "runner/", "cases/", "audit/", "verdict.py", "results.py", "live/")
LEFT_OUT = {
    "graphs/cuda.py": "real CUDA graphs",
    "graphs/foreign.py": "somebody else's CUDA graphs",
    "audit/lines.py:_monitor": "Python 3.12 and later",
    "audit/lines.py:_stop_monitoring": "Python 3.12 and later",
    "audit/lines.py:_on_start": "Python 3.12 and later",
    "cases/workload.py:decode_latency": "times a GPU",
    "cases/breakable_graph.py:capture_cost": "times a GPU",
    "live/audit.py": "stands inside vLLM's engine",
    "live/audited.py:audit_model": "stands inside vLLM's engine",
    "live/audited.py:audit_variant": "stands inside vLLM's engine",
    "live/audited.py:main": "stands inside vLLM's engine",
    "live/extension.py": "stands inside vLLM's workers",
    "live/flash_mla.py": "calls vLLM's kernels",
    "live/lora.py": "runs vLLM's engine",
    "live/mla.py": "runs vLLM's engine",
    "live/worker.py": "runs vLLM's engine",
    "live/engine.py:watch": "real CUDA graphs",
    "live/engine.py:kernels": "real CUDA graphs",
    "live/engine.py:make_engine": "runs vLLM's engine",
    "live/engine.py:close": "runs vLLM's engine",
    "live/engine.py:generate": "runs vLLM's engine",
    "live/models.py:make_qwen3_config": "a shape for vLLM's engine",
    "live/models.py:make_mla_config": "a shape for vLLM's engine",
    "live/models.py:use_spread_weights": "stands inside vLLM's engine",
    "live/models.py:spread_weights": "draws on a GPU",
    "live/pp.py:observe": "runs vLLM's engine",
    "live/pp.py:watched": "runs vLLM's engine",
    "live/pp.py:sampling": "runs vLLM's engine",
}
"""Files, and functions of files, that no test on a CPU can look after; and why."""


class DropStatement(Operator):
    """A call whose value nobody takes, or an assignment to what outlives the function, becomes `pass`."""

    def mutation_positions(self, node):
        if node.type == "simple_stmt" and node.children[0].type in ("atom_expr", "expr_stmt"):
            statement = node.children[0]
            target, then = statement.children[:2]
            if then.type != "annassign" and ("atom_expr" in (statement.type, target.type) or then != "="):
                yield statement.start_pos, statement.end_pos

    def mutate(self, node, index):
        first = node.get_first_leaf()
        node.children[0] = Name("pass", first.start_pos, prefix=first.prefix)
        return node

    @classmethod
    def examples(cls):
        return ()


SWAPS = {
    "BinaryOperator": "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul BitOr_BitAnd "
    "BitAnd_BitOr LShift_RShift RShift_LShift",
    "ComparisonOperator": "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Is_IsNot IsNot_Is",
    "UnaryOperator": "Delete_Not Delete_USub Delete_Invert",
}
OPERATORS = [f"Replace{kind}_{swap}" for kind, swaps in SWAPS.items() for swap in swaps.split()] + [
    "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer",
    "RemoveDecorator", "ZeroIterationForLoop", "DropStatement",
]  # fmt: skip


def operator(name):
    return DropStatement() if name == "DropStatement" else get_operator(f"core/{name}")()


def mutated(source, change):
    """The source with a change in it."""
    return mutate_code(source, operator(change["operator"]), change["occurrence"])


def sample(number, seed):
    """Changes, no two at one place; of each package as many as its size asks for, and at least six.

    Which ones, a hash of their lines decides: a change of the package leaves most of the sample as it is.
    """
    found = defaultdict(list)
    for file in map(str, sorted(Path("mrv2lab").rglob("*.py"))):
        short = file.removeprefix("mrv2lab/")
        if short.startswith(PACKAGES) and short not in LEFT_OUT:
            lines = Path(file).read_text().splitlines()
            for (line, column), ways in places(file).items():
                rank = digest(f"{seed} {file} {column} {lines[line - 1]}".encode())
                found[package(file)].append((rank, file, ways))
    total, changes = sum(map(len, found.values())), []
    for ranked in found.values():
        chosen = ((file, *ways[int(rank, 16) % len(ways)]) for rank, file, ways in sorted(ranked))
        changes += islice(
            filter(None, starmap(described, chosen)), max(6, round(number * len(ranked) / total))
        )
    return changes


def places(file):
    """Where a file can be changed, and how: {(line, column): [(operator, occurrence)]}."""
    source, found = Path(file).read_text(), defaultdict(list)
    nodes, left_out = list(ast_nodes(get_ast(source))), list(unfit(source, file))
    for name in OPERATORS:
        op, occurrence = operator(name), 0
        for node in nodes:
            for start, _ in op.mutation_positions(node):
                if not any(first <= start < last for first, last in left_out):
                    found[start].append((name, occurrence))
                occurrence += 1
    return found


def unfit(source, file):
    """Where a change changes nothing that runs here: annotations, and functions in LEFT_OUT."""
    for node in ast.walk(ast.parse(source)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if f"{file.removeprefix('mrv2lab/')}:{getattr(node, 'name', None)}" in LEFT_OUT:
            parts.append(node)
        for part in filter(None, parts):
            yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def described(file, name, occurrence):
    """A change as text, None if it gives no Python; `line` is the first that differs."""
    source, change = Path(file).read_text(), {"operator": name, "occurrence": occurrence}
    try:
        changed = mutated(source, change)
        compile(changed, file, "exec")
    except (AttributeError, SyntaxError):  # an exception in a tuple, a star that multiplies nothing
        return None
    pairs = enumerate(zip(source.splitlines(), changed.splitlines(), strict=False), 1)
    line, was, now = next((n, a.strip(), b.strip()) for n, (a, b) in pairs if a != b and a)
    return {"file": file, "line": line, "was": was, "is": now} | change


def package(file):
    return file.split("/")[1]


def digest(*parts):
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
