"""A fix taken out of an installed package while it runs: its bug shows on a release that holds the fix.

    with unfix(Edit("vllm.module:Class.method", find="new_tensors = _"), versions="==0.23.0"):
        ...

An `Edit` names a function and a statement in it by syntax, never by line number (`mrv2lab.upstream.rewrite`).
The module's source is rewritten in memory, the functions concerned are compiled from it in the module's own
globals and set where the originals are; on leaving, the very same originals are back. A source that is not
the one an edit was written for is refused. `diff` shows what an edit does, made from the reader's own copy.

What it cannot reach: whoever took hold of the original earlier (an object that keeps a bound method, a
registered custom op, a compiled model). Make such objects within the `with`. The decorators of an edited
function run again.
"""

import ast
import copy
import difflib
import importlib
import importlib.util
import itertools
import linecache
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from mrv2lab.errors import BadInput
from mrv2lab.source import Diff
from mrv2lab.upstream.rewrite import Edit, Function, SourceChanged, rewrite, scope, trail

__all__ = ["Edit", "SourceChanged", "diff", "unfix"]

_open: set[str] = set()  # `where` of every function that is edited now
# What a class statement makes of these; setting them on a finished class does not.
_IMPLICIT = {"__new__": staticmethod, "__init_subclass__": classmethod, "__class_getitem__": classmethod}


@contextmanager
def unfix(*edits: Edit, package: str = "vllm", versions: str) -> Iterator[Diff]:
    """Run the body with the edits made, and yield their diff.

    Args:
        package: the package that all edits are in.
        versions: the releases that the edits were written for, for example "==0.23.0" or ">=0.22,<0.24".

    Raises:
        SourceChanged: another version is installed, or its source does not hold what an edit looks for.
        BadInput: a malformed argument, edits that overlap, or a function that another `unfix` has open.
    """
    _check_arguments(edits, package)
    _check_version(edits, package, versions)
    specs = {edit.module: _spec(edit.module) for edit in edits}
    modules = {name: importlib.import_module(name) for name in specs}  # before rewriting: errors name more
    texts = [_text(spec, edits) for spec in specs.values()]
    made = [swap for text in texts for swap in _made(modules[text.module], text)]
    with ExitStack() as stack:
        for where in {edit.where for edit in edits}:
            _open.add(where)
            stack.callback(_open.remove, where)
        for holder, name, old, new in made:
            stack.callback(setattr, holder, name, old)
            setattr(holder, name, new)
        yield _compared(texts)


def diff(*edits: Edit) -> Diff:
    """The unified diff that the edits make in the sources found here. Imports nothing, checks no version.

    Raises:
        SourceChanged, BadInput: as for `unfix`.
    """
    specs = {edit.module: _spec(edit.module) for edit in edits}
    return _compared([_text(spec, edits) for spec in specs.values()])


def _check_arguments(edits: tuple[Edit, ...], package: str) -> None:
    for edit in edits:
        if edit.module.split(".")[0] != package:
            raise BadInput(f"{edit.where} is not in the package {package}, whose version is checked")
        if edit.where in _open:
            raise BadInput(f"{edit.where} is edited by an unfix still open; give both edits to one unfix")


# ---- version ----


def _check_version(edits: tuple[Edit, ...], package: str, versions: str) -> None:
    try:
        wanted = SpecifierSet(versions)
    except InvalidSpecifier as error:
        raise BadInput(f"versions {versions!r}; write for example '==0.23.0'") from error
    installed = _version(package)
    if not wanted.contains(installed):
        wheres = ", ".join(dict.fromkeys(edit.where for edit in edits))
        what = f"the edit of {wheres}" if edits else "this"
        raise SourceChanged(f"{package} {installed} is installed; {what} is for {versions}")


def _version(package: str) -> str:
    """The version of the package that is imported, which need not be the first one that has metadata."""
    for folder in _spec(package).submodule_search_locations or []:
        for found in distributions(name=package, path=[str(Path(folder).parent)]):
            return found.version
    stated = getattr(importlib.import_module(package), "__version__", None)
    if stated is None:
        raise SourceChanged(f"{package} has neither metadata beside it nor a __version__")
    return str(stated)


# ---- source ----


@dataclass(frozen=True)
class _Text:
    """One module's source before and after the edits that are in it."""

    module: str
    file: str  # relative to the folder that holds the package
    before: str
    after: str
    edits: tuple[Edit, ...]


def _text(spec: ModuleSpec, edits: tuple[Edit, ...]) -> _Text:
    own = tuple(edit for edit in edits if edit.module == spec.name)
    ending = ".py" if spec.submodule_search_locations is None else "/__init__.py"
    file = spec.name.replace(".", "/") + ending
    get_source = getattr(spec.loader, "get_source", lambda name: None)
    before = get_source(spec.name)
    if before is None:
        raise SourceChanged(f"looked for {own[0].where}: {spec.name} has no Python source here")
    return _Text(spec.name, file, before, rewrite(before, own, file), own)


def _spec(name: str) -> ModuleSpec:
    """Where a module is, found without importing the packages around it."""
    loaded: ModuleSpec | None = getattr(sys.modules.get(name), "__spec__", None)
    if loaded is not None:
        return loaded
    parent = name.rpartition(".")[0]
    if not parent:
        spec = importlib.util.find_spec(name)
    else:
        spec = PathFinder.find_spec(name, list(_spec(parent).submodule_search_locations or []))
    if spec is None:
        raise SourceChanged(f"there is no module {name} here")
    return spec


def _compared(texts: list[_Text]) -> Diff:
    lines: list[str] = []
    for text in texts:
        old, new = (source.removesuffix("\n").split("\n") for source in (text.before, text.after))
        lines += difflib.unified_diff(old, new, text.file, f"{text.file}, edited", lineterm="")
    return Diff(tuple(lines))


# ---- functions from the edited source ----


def _made(module: ModuleType, text: _Text) -> list[tuple[Any, str, Any, Any]]:
    """Holder, name, original and edited function, for every place that holds one of the originals."""
    filename = _register(text)
    swaps: list[tuple[Any, str, Any, Any]] = []
    for edit in {edit.where: edit for edit in text.edits}.values():
        *levels, name = _attributes(edit.path)
        *_, owner = owners = list(itertools.accumulate(levels, getattr, initial=module))
        if name not in vars(owner):
            raise SourceChanged(f"{edit.where} is in {text.file}, but {owner!r} as it runs has no {name}")
        new = _compiled(owners, text, edit, filename)
        swaps += [(*place, vars(owner)[name], new) for place in _holders(owner, name)]
    return swaps


def _register(text: _Text) -> str:
    """Give the edited source a file name under which tracebacks and `inspect` find it."""
    lines = [f"{line}\n" for line in text.after.removesuffix("\n").split("\n")]
    entry = (len(text.after), None, lines, "")
    counts = itertools.chain([""], (f" {count}" for count in itertools.count(2)))  # each text has its own
    names = (f"<{text.file}, edited{count}>" for count in counts)
    return next(name for name in names if linecache.cache.setdefault(name, entry) == entry)


def _attributes(path: list[str]) -> list[str]:
    """The path as attributes: Python renames `__name` within `class C` to `_C__name`."""
    return [path[0], *(_mangled(name, cls) for cls, name in itertools.pairwise(path))]


def _mangled(name: str, cls: str) -> str:
    return f"_{cls.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _holders(owner: Any, name: str) -> list[tuple[Any, str]]:
    """A method is held by its class; a function also by every module of the package that imported it."""
    if not isinstance(owner, ModuleType):
        return [(owner, name)]
    old, package = vars(owner)[name], owner.__name__.split(".")[0]
    loaded = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    inside = [module for module in loaded if f"{module.__name__}.".startswith(f"{package}.")]
    return [(module, key) for module in inside for key, value in list(vars(module).items()) if value is old]


def _compiled(owners: list[Any], text: _Text, edit: Edit, filename: str) -> Any:
    """The edited function, its decorators, defaults and annotations evaluated as its module would.

    Args:
        owners: the module, then the classes that lead to the function.
    """
    tree = ast.parse(text.after)
    classes, function = trail(tree, edit, text.file)
    body: ast.stmt = function
    for cls in reversed(classes):
        body = _reopening(cls, body)
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    program = ast.fix_missing_locations(ast.Module([*future, body], []))
    names: dict[str, Any] = {_META: _Reopened(owners[1:], classes, function)}
    exec(compile(program, filename, "exec", dont_inherit=True), vars(owners[0]), names)
    path = _attributes(edit.path)
    made: Any = reduce(lambda inside, name: inside[name], path, names)
    return _as_set_by_a_class(made, owners[-1], path[-1]) if classes else made


def _as_set_by_a_class(made: Any, owner: type, name: str) -> Any:
    """Do to one attribute what making a class does to each."""
    if name in _IMPLICIT and isinstance(made, FunctionType):
        made = _IMPLICIT[name](made)
    if hasattr(type(made), "__set_name__"):
        made.__set_name__(owner, name)
    return made


_META = "__unfix__"  # the metaclass's name while a class is reopened; ends in __, so it is not renamed


def _reopening(cls: ast.ClassDef, body: ast.stmt) -> ast.ClassDef:
    """`class C(metaclass=__unfix__): body`. Within a class of the same name `__x` is renamed as before."""
    opened = copy.copy(cls)
    opened.bases, opened.decorator_list = [], []
    opened.keywords = [ast.keyword("metaclass", ast.Name(_META, ast.Load()))]
    opened.body = [body]
    return opened


class _Reopened:
    """Stands as metaclass, so that a class body runs again for one function and no class is made.

    The body sees what the original saw at that point, and `super()` and `__class__` mean the real class.
    """

    def __init__(self, owners: list[type], classes: list[ast.ClassDef], function: Function) -> None:
        self.levels = zip(owners, classes, strict=True)
        self.function = function
        self.inside: list[type] = []

    def __prepare__(self, name: str, bases: tuple[Any, ...]) -> dict[str, Any]:
        owner, cls = next(self.levels)
        self.inside.append(owner)
        earlier = {_mangled(key, name) for key in _bound_before(cls, self.function)}
        return {_META: self} | {key: value for key, value in vars(owner).items() if key in earlier}

    def __call__(self, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> dict[str, Any]:
        owner = self.inside.pop()
        if "__classcell__" in namespace:
            namespace["__classcell__"].cell_contents = owner
        return namespace


def _bound_before(cls: ast.ClassDef, function: Function) -> set[str]:
    """Names that the class body has bound above one of its functions."""
    names: set[str] = set()
    for node in scope(cls):
        if getattr(node, "lineno", function.lineno) >= function.lineno:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return names
