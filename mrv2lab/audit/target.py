"""What to audit, as a command line or a notebook cell names it: a step, and how to vary and reset it.

The cell magic: `%load_ext mrv2lab.audit`, then a cell that begins with `%%audit` and defines `step`.
"""

import dis
import importlib.util
import sys
import traceback
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from collections.abc import Callable, Set, ValuesView
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.audit.arguments import asks_nothing
from mrv2lab.audit.driver import audit
from mrv2lab.audit.passes import nothing, on_a_cpu
from mrv2lab.audit.report import NOT_COMPARED, AuditReport
from mrv2lab.errors import BadInput, CaptureError, NotRepeatable, file_and_function
from mrv2lab.graphs.owned import observable

# For a step of which what is frozen could not show.
HOW_TO_VARY = 'Let the inputs change, in place: def vary(): x.copy_(other); state["n"] = 3'


def audit_target(
    target: str,
    *,
    vary: str | None = None,
    reset: str | None = None,
    backend: str = "auto",
    runs_anew: bool = False,
) -> AuditReport:
    """Audit `FILE.py:FUNCTION`.

    Args:
        target: file and name. Functions named `vary` and `reset` beside it are used, if there are any, and
            what is named as another argument of `audit` and is what that takes.
        vary, reset: other names for these.
        runs_anew: makes the file a `twin`: it is run again for each fresh engine. One that the file names
            goes first. So it is, too, where the step cannot be repeated, or not at each request, and names no
            twin.

    Raises:
        BadInput: no such file or function, a file that cannot be run; else as `audit`.
    """
    file, name = file_and_function(target)
    namespace = _run_file(file)
    audited = partial(audit_names, step=name, vary=vary, reset=reset, backend=backend)

    def make() -> SimpleNamespace:
        found = {"vary": nothing} | _run_file(file)
        called = {"step": name, "vary": vary or "vary", "reset": reset or "reset"}
        given = {to: found[one] for to, one in called.items() if one in found}
        more = {k: v for k, v in found.items() if k in _OF_ENGINES and _MORE.get(k, callable)(v)}
        return SimpleNamespace(**more | given)

    if runs_anew:
        return audited({"twin": make} | namespace)
    report, error = None, None
    try:
        report = audited(namespace)
        if report.findings or not any(NOT_COMPARED in one for one in report.notes):
            return report
    except NotRepeatable as refused:
        error = refused
    if "twin" not in namespace:
        with suppress(BadInput):  # nobody has asked to run it again, and it need not run twice
            return audited({"twin": make} | _run_file(file))  # the step has moved the other one on
    if report is None:
        assert error is not None
        raise error
    return report


def audit_names(
    namespace: dict[str, Any], step: str, *, vary: str | None, reset: str | None, backend: str
) -> AuditReport:
    """Audit functions by their names in a namespace. Exceptions as in `audit_target`."""
    change, restore = _optional(namespace, vary, "vary"), _optional(namespace, reset, "reset")
    known = {name: namespace[name] for name in _MORE if name in namespace}
    more = {name: value for name, value in known.items() if _MORE[name](value)}
    report = audit(_callable(namespace, step), vary=change, reset=restore, backend=backend, **more)
    others = (name for name in known if name not in more and not callable(known[name]))
    left = (f"{name} is not what an audit takes by that name: it was left alone" for name in others)
    return replace(report, notes=(*report.notes, *left))


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple | Set | ValuesView) and all(map(kind, value))


_MORE: dict[str, Callable[[Any], bool]] = {
    "beside": _are(asks_nothing),
    "inputs": _are(lambda value: isinstance(value, torch.Tensor)),
    "rows": asks_nothing,
    "reads": asks_nothing,
    "twin": asks_nothing,
    "in_flight": lambda value: isinstance(value, int),
}
"""Arguments of `audit` that a file or a cell may name, and what they are then."""
_OF_ENGINES = ("beside", "eager", "finish", "rows")


_FILES = set[str]()  # names of modules that are files which were run
_IMPORTED = dict[str, Path]()  # modules that such a file was the first to import, and its folder


def _run_file(path: Path) -> dict[str, Any]:
    """What it defines. Modules of its folder that it imports are run anew with it: engines may live there."""
    folder, before = path.parent.resolve(), set(sys.modules)
    for name in [name for name, of in _IMPORTED.items() if of == folder]:
        sys.modules.pop(name, None)
    try:
        return _defined(path)
    finally:
        lies = ((name, getattr(sys.modules[name], "__file__", None)) for name in sys.modules.keys() - before)
        inside = (name for name, file in lies if file and Path(file).is_relative_to(folder))
        _IMPORTED.update((name, folder) for name in inside if not _registers(sys.modules[name]))


def _registers(module: ModuleType) -> bool:
    """Whether it is one that a process runs once: it registers ops."""
    return any(isinstance(value, torch.library.Library) for value in vars(module).values())


def _defined(path: Path) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or not isinstance(spec.loader, SourceLoader):
        raise BadInput(f"{path}: not a Python file; give FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    if module.__name__ not in sys.modules or module.__name__ in _FILES:
        _FILES.add(module.__name__)
        sys.modules[module.__name__] = module  # as its dataclasses, and what it pickles, ask for it
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        # Not `get_code`: what was compiled a moment ago, it takes for what is written there now.
        code = spec.loader.source_to_code(path.read_bytes(), str(path))
        with observable():
            # What a module imports decides nothing; what the file itself captures as it is run, does.
            exec(code.replace(co_name="<file>"), vars(module))
    except (Exception, SystemExit) as error:
        at = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
        line = f":{at[-1].lineno}" if at else ""
        raised = f"{type(error).__name__}: {error}"
        hint = on_a_cpu(raised) or "; it must run by itself" * (not isinstance(error, CaptureError))
        if "attempted relative import" in raised:
            hint = ". A file of a package cannot be run alone: write one beside it that imports the step"
        if "TORCH_LIBRARY" in raised:  # of torch
            hint = ". To run it anew, put what registers ops into a module beside it, which is run once"
            raised = raised.partition(";")[0]
        raise BadInput(f"{path}{line} raised {raised}{hint}") from error
    finally:
        sys.path.pop(0)
    return vars(module)


def _callable(namespace: dict[str, Any], name: str) -> Callable[[], Any]:
    found: Callable[[], Any] | None = namespace.get(name)
    if found is None or not callable(found):
        called = (n for n, value in namespace.items() if callable(value) and not isinstance(value, type))
        possible = [n for n in called if not n.startswith("_")]
        raise BadInput(f"no function {name!r}; possible: {', '.join(possible) or 'none is defined'}")
    return found


def _optional(namespace: dict[str, Any], name: str | None, default: str) -> Callable[[], Any] | None:
    if name is not None:
        return _callable(namespace, name)
    return _callable(namespace, default) if default in namespace else None


def audit_cell(shell: Any, line: str, cell: str) -> AuditReport | None:
    """Run a cell, then audit what it defines: `step`, and `vary` and `reset` where it defines these.

    What other cells define is taken only if it is named: `--step NAME --vary NAME --reset NAME`. One more
    option is `--backend auto|cuda|emulated`.

    Raises:
        BadInput: an unknown option, or no such function; else as `audit`.
    """
    options = _options(line)
    source = f"# %%audit {line}\n{cell}"  # so that lines are counted as the notebook counts them
    if not _run(shell, source):  # IPython has shown the error
        return None
    code = compile(shell.transform_cell(source), "cell", "exec", PyCF_ALLOW_TOP_LEVEL_AWAIT)
    own = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_NAME", "STORE_GLOBAL")}
    wanted, step = own | {options.step, options.vary, options.reset}, options.step or "step"
    if step not in wanted:
        defined = ", ".join(name for name in sorted(own) if callable(shell.user_ns.get(name))) or "nothing"
        raise BadInput(f"this cell defines no 'step'; it defines: {defined}; --step NAME takes another")
    namespace = {name: value for name, value in shell.user_ns.items() if name in wanted}
    report = audit_names(namespace, step, vary=options.vary, reset=options.reset, backend=options.backend)
    if not report.varied:
        left_alone = "\nThe vary of another cell was left alone; %%audit --vary vary takes it."
        print(HOW_TO_VARY + left_alone * ("vary" in shell.user_ns))
    return report


def _run(shell: Any, source: str) -> bool:
    """Run it under the number of the prompt that the cell has, which is that of the last input kept."""
    cache, prompt = shell.compile.cache, len(shell.history_manager.input_hist_raw) - 1
    with patch.object(shell.compile, "cache", lambda code, _number=0, **raw: cache(code, prompt, **raw)):
        return bool(shell.run_cell(source).success)


def _options(line: str) -> Any:
    from IPython.core.error import UsageError
    from IPython.core.magic_arguments import MagicArgumentParser

    parser = MagicArgumentParser("%%audit", add_help=False)
    for function in ("--step", "--vary", "--reset"):
        parser.add_argument(function)
    parser.add_argument("--backend", default="auto")
    try:
        return parser.parse_argstring(line)
    except UsageError as error:
        raise BadInput(f"%%audit {line}: {error}; possible: {parser.format_usage().strip()}") from error


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext mrv2lab.audit` calls. Bad input is one line there, without a traceback through us."""
    from IPython.core.error import UsageError

    def magic(line: str, cell: str) -> AuditReport | None:
        try:
            return audit_cell(shell, line, cell)
        except BadInput as error:
            raise UsageError(str(error)) from error

    shell.register_magic_function(magic, "cell", "audit")
