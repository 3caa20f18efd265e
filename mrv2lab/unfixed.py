"""A fix taken out of an installed package while tests run: does one of them notice?

`noticed` runs pytest twice, once as things are and once with this module as its plugin, which makes the edit
that the environment names (`mrv2lab.upstream.unfix`). Nothing is written into the package.
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
from typing import Any
from xml.etree import ElementTree

from mrv2lab.errors import BadInput
from mrv2lab.upstream.unfix import Edit, unfix
from mrv2lab.upstream.unfix import _version as version_of

ASKED = "MRV2LAB_UNFIX"  # what pytest is to take out: an `Edit` and `versions`, as JSON


def noticed(edit: Edit, versions: str | None, tests: Sequence[str]) -> tuple[dict[str, str], int]:
    """Run tests without and with an edit.

    Args:
        versions: as of `unfix`; None: whichever is there.
        tests: arguments of pytest.

    Returns:
        Tests that fail with it alone, by name, each with the first line of what it says; and how many ran.

    Raises:
        BadInput: they fail without it too, none ran, or the edit cannot be made.
    """
    failed, number = _run(tests)
    if failed:
        name, why = next(iter(failed.items()))
        raise BadInput(f"{name} fails with nothing taken out: {why}")
    asked = json.dumps(asdict(edit) | {"versions": versions})
    return _run(["-p", __name__, *tests], {ASKED: asked})[0], number


def _run(args: Sequence[str], env: dict[str, str] | None = None) -> tuple[dict[str, str], int]:
    """Tests that failed, and how many ran. BadInput: none did."""
    with tempfile.TemporaryDirectory(prefix="mrv2lab-") as folder:
        report = Path(folder, "junit.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *args]
        done = subprocess.run(command, env=os.environ | (env or {}), text=True, capture_output=True)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    ran = [case for case in cases if case.find("skipped") is None]
    if not ran:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise BadInput(f"pytest ran no test: {said[-1] if said else f'it ended with {done.returncode}'}")
    failed = dict[str, str]()
    for case in ran:
        for why in (*case.findall("failure"), *case.findall("error")):
            name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
            failed.setdefault(name, (why.get("message") or "it failed").splitlines()[0])
    return failed, len(ran)


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
