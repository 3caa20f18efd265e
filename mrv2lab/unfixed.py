"""A fix taken out of an installed package while tests run: does one of them notice?

`noticed` runs pytest as things are and with this module as its plugin, which makes the edit that the
environment names (`mrv2lab.upstream.unfix`). Nothing is written into the package.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from mrv2lab.errors import BadInput, counted
from mrv2lab.upstream.unfix import Edit, unfix
from mrv2lab.upstream.unfix import _check_version as check_version
from mrv2lab.upstream.unfix import _version as version_of

ASKED = "MRV2LAB_UNFIX"  # what pytest is to take out: an `Edit` and `versions`, as JSON


def check(edit: Edit, versions: str | None) -> None:
    """BadInput: the package is not of these versions, or has none."""
    package = edit.module.partition(".")[0]
    check_version((edit,), package, versions or f"=={version_of(package)}")


def noticed(edit: Edit, versions: str | None, tests: Sequence[str]) -> tuple[dict[str, str], int]:
    """Run tests without and with an edit.

    Args:
        versions: as of `unfix`; None: whichever is there.
        tests: arguments of pytest.

    Returns:
        Tests that fail with it alone, by name, each with the first line of what it says; and how many ran.

    Raises:
        BadInput: they fail without it too, not all ran to their end, or the edit cannot be made.
    """
    as_is = _run(tests)
    if as_is.failed:
        name, why = next(iter(as_is.failed.items()))
        raise BadInput(f"{name} fails with nothing taken out: {why}")
    asked = json.dumps(asdict(edit) | {"versions": versions})
    without = _run(["-p", __name__, *tests], {ASKED: asked})
    if without.number != as_is.number or without.code not in (0, 1):  # they are skipped, or pytest was left
        ran = f"{without.number} of {counted(as_is.number, 'test')} ran"
        raise BadInput(f"with it taken out {ran}, and pytest ended with {without.code}: {without.said}")
    if without.failed and (again := _run(tests).failed):
        raise BadInput(f"{next(iter(again))} fails now and then, with nothing taken out too")
    return without.failed, as_is.number


class _Ran(NamedTuple):
    """What a run of pytest has come to."""

    failed: dict[str, str]  # the first line that each test says
    number: int  # of tests that were not skipped
    code: int  # exit status
    said: str  # its last line


def _run(args: Sequence[str], env: dict[str, str] | None = None) -> _Ran:
    """BadInput: no test ran."""
    with tempfile.TemporaryDirectory(prefix="mrv2lab-") as folder:
        report = Path(folder, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-q", *args, f"--junit-xml={report}"]
        done = subprocess.run(command, env=os.environ | (env or {}), text=True, capture_output=True)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    last = f"signal {-done.returncode} ended it" if done.returncode < 0 else said[-1] if said else "nothing"
    ran = [case for case in cases if case.find("skipped") is None]
    if not ran:
        raise BadInput(f"pytest ran no test to its end: {last}")
    failed = dict[str, str]()
    for case in ran:
        for why in (*case.findall("failure"), *case.findall("error")):
            name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            failed.setdefault(name, (why.get("message") or "it failed").splitlines()[0])
    return _Ran(failed, len(ran), done.returncode, last)


def pytest_configure(config: Any) -> None:
    """Take out what is asked for, until pytest ends. What it imports, a `conftest.py` can prepare."""
    import pytest

    asked = json.loads(os.environ[ASKED])
    versions, edit = asked.pop("versions"), Edit(**asked)
    package = edit.module.partition(".")[0]
    with ExitStack() as stack:
        try:
            stack.enter_context(unfix(edit, package=package, versions=versions or f"=={version_of(package)}"))
        except (BadInput, ImportError) as error:
            raise pytest.UsageError(f"nothing can be taken out: {error}") from error
        config.add_cleanup(stack.pop_all().close)
