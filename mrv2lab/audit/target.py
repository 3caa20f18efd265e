"""What to audit, as a command line or a notebook cell names it: a step, and how to vary and reset it."""

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mrv2lab.audit.driver import audit
from mrv2lab.audit.report import AuditReport
from mrv2lab.errors import BadInput, file_and_function

# For a step of which what is frozen could not show.
HOW_TO_VARY = 'Let the inputs change, in place: def vary(): x.copy_(other); state["n"] = 3'


def audit_target(
    target: str, *, vary: str | None = None, reset: str | None = None, backend: str = "auto"
) -> AuditReport:
    """Audit `FILE.py:FUNCTION`.

    Args:
        target: file and name. Functions named `vary` and `reset` beside it are used, if there are any, and
            what is named as another argument of `audit` and is what that takes.
        vary, reset: other names for these.

    Raises:
        BadInput: no such file or function, a file that cannot be run; else as `audit`.
    """
    file, name = file_and_function(target)
    return audit_names(_run_file(file), name, vary=vary, reset=reset, backend=backend)


def audit_names(
    namespace: dict[str, Any], step: str, *, vary: str | None, reset: str | None, backend: str
) -> AuditReport:
    """Audit functions by their names in a namespace. Exceptions as in `audit_target`."""
    change, restore = _optional(namespace, vary, "vary"), _optional(namespace, reset, "reset")
    known = {name: namespace[name] for name in _MORE if name in namespace}
    more = {name: value for name, value in known.items() if _MORE[name](value)}
    return audit(_callable(namespace, step), vary=change, reset=restore, backend=backend, **more)


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(kind, value))


_MORE: dict[str, Callable[[Any], bool]] = {
    "beside": _are(callable),
    "inputs": _are(lambda value: isinstance(value, torch.Tensor)),
    "rows": callable,
    "reads": callable,
    "twin": callable,
    "in_flight": lambda value: isinstance(value, int),
}
"""Arguments of `audit` that a file or a cell may name, and what they are then."""


def _run_file(path: Path) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{path}: not a Python file; give FILE.py:FUNCTION")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        at = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f":{at[-1].lineno}" if at else ""
        raised = f"{type(error).__name__}: {error}"
        raise BadInput(f"{path}{line} raised {raised}; it must run by itself") from error
    finally:
        sys.path.pop(0)
    return vars(module)


def _callable(namespace: dict[str, Any], name: str) -> Callable[[], Any]:
    found: Callable[[], Any] | None = namespace.get(name)
    if found is None or not callable(found):
        possible = [n for n, value in namespace.items() if callable(value) and not n.startswith("_")]
        raise BadInput(f"no function {name!r}; possible: {', '.join(possible) or 'none is defined'}")
    return found


def _optional(namespace: dict[str, Any], name: str | None, default: str) -> Callable[[], Any] | None:
    if name is not None:
        return _callable(namespace, name)
    return _callable(namespace, default) if default in namespace else None
