"""The cell magic: `%load_ext mrv2lab.audit`, then a cell that begins with `%%audit` and defines `step`."""

import dis
from ast import PyCF_ALLOW_TOP_LEVEL_AWAIT
from typing import Any
from unittest.mock import patch

from mrv2lab.audit.report import AuditReport
from mrv2lab.audit.target import HOW_TO_VARY, audit_names
from mrv2lab.errors import BadInput


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
