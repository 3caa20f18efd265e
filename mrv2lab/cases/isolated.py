"""Runs a variant in a process of its own: after a device-side assert a CUDA context is lost for good."""

import os
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

from mrv2lab.forks import Fork, last_lines
from mrv2lab.limits import cut_off
from mrv2lab.results import Run, write

CHILD = "MRV2LAB_ISOLATED"  # set in the child, which must not start a child of its own
TIMEOUT_S = 900  # by the clock; how long the variant may run is limited in the child
_TAIL = 40  # lines of the child's last words


class Died(RuntimeError):
    """The process ended without a result. The first line is its last one, the rest what led to it."""


def in_child() -> bool:
    """True in a process that `run` started."""
    return CHILD in os.environ


def run(case: str, variant: str, rung: str, shape: dict[str, int], env: dict[str, str]) -> Run:
    """Run one variant there, with `env` added to its environment. Died; CutOff: after `TIMEOUT_S`."""
    with tempfile.TemporaryDirectory(prefix="mrv2lab-") as name:
        result, log = Path(name, "result"), Path(name, "log")
        child = Fork(
            _run, case, variant, rung, shape, result, log=log, folder=Path(name), env={CHILD: "1"} | env
        )
        try:
            if not wait([child.sentinel], TIMEOUT_S):
                raise cut_off(variant, TIMEOUT_S)
        finally:
            child.end()
        if result.exists():
            return Run.model_validate_json(result.read_bytes())
        said = last_lines(log, _TAIL) or [f"ended with status {child.status}, and not a word"]
        raise Died("\n".join([said[-1], *said]))


def _run(case: str, variant: str, rung: str, shape: dict[str, int], result: Path) -> None:
    from mrv2lab.cases import CASES  # which import this module

    write(result, CASES[case].run(variant, rung=rung, **shape).model_dump_json())
