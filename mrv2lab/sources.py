"""Which code a record's numbers depend on: files of this package, each with a hash of its meaning.

The meaning is a file's syntax tree without docstrings: comments, formatting and words for readers change no
result. Which files these are is read off the code's own imports, from the modules on that make the numbers.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path

from mrv2lab import prose

PACKAGE = Path(__file__).resolve().parent

_MODULE = re.compile(r"\w+(/\w+)*\.py")  # a path that stays below the package

_TOLD = prose.beside(__file__)
APART: tuple[str, ...] = _TOLD["apart"]
ELSEWHERE: dict[str, tuple[str, ...]] = _TOLD["elsewhere"]
READ: dict[Path, tuple[str, list[str]]] = {}
"""What this process runs is what it has read once, whatever becomes of the file; so are its forks told."""


def of_run(case: str, rung: str) -> dict[str, str]:
    """What runs of a case on a rung depend on, as `of`. Audits are none of it."""
    probe = f"upstream.probes.{case}"
    roots = {"source": ("upstream.child", probe), "vllm": ("live.rung", probe)}.get(rung, (f"cases.{case}",))
    return of(rung, *roots, besides=("audit", "cases.decode_step"))


def of_audit(case: str, rung: str) -> dict[str, str]:
    """What audits of a case on a rung depend on, as `of`: no other case."""
    return of(rung, "cases.matrix", f"cases.{case}")


def of(rung: str, *roots: str, besides: Iterable[str] = ()) -> dict[str, str]:
    """What numbers made on a rung depend on: files, as paths below the package, to the hash of each meaning.

    Args:
        roots: modules that make them, `runner.model` for `mrv2lab.runner.model`.
        besides: modules that these import for something else.
    """
    apart = {*APART, *ELSEWHERE[rung], *besides}
    found: dict[str, str] = {}
    waiting = ["mrv2lab.__init__", *(f"mrv2lab.{root}" for root in roots)]
    while waiting:
        file = _file(waiting.pop())
        if file is not None and file not in found and not _names(file) & apart:
            found[file], imports = _read(PACKAGE / file)
            waiting += imports
    return dict(sorted(found.items()))


def changed(sources: dict[str, str]) -> list[str]:
    """Of these files, those that mean something else now, or are gone."""
    asked = {file: kept for file, kept in sources.items() if not _names(file) & {*APART}}
    return [file for file, kept in asked.items() if _now(file) != kept]


def _now(file: str) -> str | None:
    """The hash of what it means; None of what a record may name and is no module of this package."""
    path = PACKAGE / file
    try:
        return _read(path)[0] if _MODULE.fullmatch(file) and path.exists() else None
    except (OSError, SyntaxError, ValueError):  # no file, or one that somebody is writing
        return None


def parts(files: Iterable[str]) -> list[str]:
    """The parts of the package that files belong to: `runner/model.py` to `runner`."""
    return list(dict.fromkeys(file.split("/")[0].removesuffix(".py") for file in files))


def _file(module: str) -> str | None:
    """Where a name is defined, below the package: its module, or the last one on the way to it."""
    _, *names = filter(None, module.split("."))
    stems = ["/".join(names[:length]) for length in range(len(names), 0, -1)]
    files = (f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py"))
    return next((file for file in files if (PACKAGE / file).exists()), None)


def _names(file: str) -> set[str]:
    """What a file may be called in a list: `upstream/probe.py` is `upstream` and `upstream.probe`."""
    names = file.removesuffix(".py").split("/")
    return {".".join(names[: n + 1]) for n in range(len(names))}


def _read(path: Path) -> tuple[str, list[str]]:
    """The hash of what a file means, and what it imports."""
    if path not in READ:
        tree = ast.parse(path.read_bytes())
        READ[path] = sha256(_meaning(tree).encode()).hexdigest()[:12], list(_imports(tree))
    return READ[path]


def _meaning(node: object) -> str:
    """A syntax tree as text. Unlike `ast.dump` the same on every Python: what is empty is left out."""
    if isinstance(node, ast.JoinedStr):
        node = ast.JoinedStr([piece for piece in node.values if getattr(piece, "value", None) != ""])
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
        return f"{type(node).__name__}({', '.join(f'{name}={_meaning(value)}' for name, value in fields)})"
    if isinstance(node, list):
        return f"[{', '.join(_meaning(item) for item in node if not _is_docstring(item))}]"
    return ascii(node)


def _is_docstring(node: object) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _imports(tree: ast.Module) -> Iterator[str]:
    """Names of this package that a file imports, or gives as text to somebody who does: `python -m`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name.startswith("mrv2lab."))
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "mrv2lab":
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Constant(value=str(text)) if text.startswith("mrv2lab."):
                yield text
