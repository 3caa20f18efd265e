"""The cell magic: `%load_ext mrv2lab.audit`, then a cell that begins with `%%audit` and defines `step`."""

import argparse
from typing import Any

from mrv2lab.audit.report import AuditReport
from mrv2lab.audit.target import audit_names
from mrv2lab.errors import BadInput


def audit_cell(shell: Any, line: str, cell: str) -> AuditReport | None:
    """Run a cell, then audit what it defines: `step`, and `vary` and `reset` where it defines these.

    Options: `--step NAME --vary NAME --reset NAME --backend auto|cuda|emulated`.

    Raises:
        BadInput: an unknown option, or no such function; else as `audit`.
    """
    options = _options(line)
    if not shell.run_cell(cell).success:  # IPython has shown the error
        return None
    return audit_names(
        shell.user_ns, options.step, vary=options.vary, reset=options.reset, backend=options.backend
    )


def _options(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser("%%audit", add_help=False, exit_on_error=False)
    parser.add_argument("--step", default="step")
    parser.add_argument("--vary")
    parser.add_argument("--reset")
    parser.add_argument("--backend", default="auto")
    try:
        options, unknown = parser.parse_known_args(line.split())
    except argparse.ArgumentError as error:
        raise BadInput(f"%%audit {line}: {error}") from error
    if unknown:
        raise BadInput(
            f"%%audit does not know {' '.join(unknown)}; possible: {parser.format_usage().strip()}"
        )
    return options


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext mrv2lab.audit` calls."""
    shell.register_magic_function(lambda line, cell: audit_cell(shell, line, cell), "cell", "audit")
