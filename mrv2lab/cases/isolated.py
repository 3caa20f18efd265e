"""Runs a variant in a process of its own: after a device-side assert a CUDA context is lost for good."""

import json
import os
import subprocess
import sys

from mrv2lab.limits import cut_off
from mrv2lab.results import Record, Run

CHILD = "MRV2LAB_ISOLATED"  # set in the child, which must not start a child of its own
TIMEOUT_S = 900  # by the clock; how long the variant may run is limited in the child
_TAIL = 40  # lines of the child's last words


class Died(RuntimeError):
    """The process ended without a result. The first line is its last one, the rest what led to it."""


def in_child() -> bool:
    """True in a process that `run` started."""
    return CHILD in os.environ


def run(case: str, variant: str, rung: str, shape: dict[str, int], env: dict[str, str]) -> Run:
    """Run one variant by `mrv2lab run --json` and read its record.

    Args:
        env: added to the child's environment.

    Raises:
        Died: the process ended without a record.
        CutOff: it took longer than `TIMEOUT_S`.
    """
    options = [part for name, value in shape.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "mrv2lab", "run", case, "--variant", variant, "--rung", rung, "--json"]
    try:
        done = subprocess.run(
            [*command, *options],
            env=os.environ | {CHILD: "1"} | env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise cut_off(variant, TIMEOUT_S) from error
    try:
        return Record.model_validate(json.loads(done.stdout)).runs[0]
    except json.JSONDecodeError as error:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}, and not a word"]
        raise Died("\n".join([said[-1], *said[-_TAIL:]])) from error
