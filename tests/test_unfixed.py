"""A fix is taken out of a package of our own, and tests are asked. Each asking is two runs of pytest."""

import shutil
import sys

import pytest
from typer.testing import CliRunner

from mrv2lab.cli import app

FIX = ["kept_plan.plan:Planner.capture", "--find", "self.plan = None"]
SOURCE = """
class Planner:
    plan = None

    def capture(self, size):
        self.plan = None  # or else the plan of another size is kept
        if self.plan is None:
            self.plan = [size]
        return self.plan
"""
TESTS = """
import os
from pathlib import Path
import pytest
from kept_plan import planner

def test_one():
    assert planner().capture(1) == [1]

def test_two():
    kept = planner()
    kept.capture(1)
    assert kept.capture(2) == [2]

@pytest.mark.skip
def test_none():
    assert False

def test_red():
    assert planner().capture(1) == "never"

def is_kept():
    kept = planner()
    kept.capture(1)
    return kept.capture(2) == [1]

@pytest.mark.parametrize("number", [1, 2])
def test_skips(number):
    if number == 2 and is_kept():
        pytest.skip("not with this planner")

@pytest.mark.parametrize("number", [1, 2])
def test_leaves(number):
    if is_kept():
        pytest.exit("the engine is dead", returncode=2)

def test_aborts():
    if is_kept():
        os.abort()

def test_now_and_then():
    times = Path(__file__).with_name("times")
    times.write_text(times.read_text() + "x" if times.exists() else "x")
    assert len(times.read_text()) < 2
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """`ask(*arguments)`: what the command prints and its exit status; beside a package that has a fix."""
    package, told = tmp_path / "kept_plan", tmp_path / "kept_plan-1.2.dist-info"
    for folder in package, told:
        folder.mkdir()
    (package / "__init__.py").write_text("from kept_plan.plan import Planner\n\nplanner = Planner\n")
    (package / "plan.py").write_text(SOURCE)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: kept_plan\nVersion: 1.2\n")
    (tmp_path / "test_plan.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.syspath_prepend(tmp_path)

    def ask(*arguments):
        done = CliRunner().invoke(app, ["unfix", *FIX, *arguments])
        return done.output, done.exit_code, str(done.exception or "")

    yield ask
    assert (package / "plan.py").read_text() == SOURCE
    for name in [name for name in sys.modules if name.startswith("kept_plan")]:
        del sys.modules[name]


def test_without_tests_it_shows_what_would_be_taken_out(ask):
    told, code, _ = ask()
    assert code == 0 and "-        self.plan = None  # or else" in told and "+        pass" in told


def test_those_that_fail_with_it_alone_notice(ask):
    told, code, _ = ask("--", "test_plan.py::test_one", "test_plan.py::test_two")
    *_, who, number = told.splitlines()
    assert (who, number, code) == (
        "test_plan::test_two: assert [1] == [2]",
        "noticed by 1 of 2 tests",
        0,
    )
    told, code, _ = ask("test_plan.py::test_one", "--versions", "==1.2")
    assert told.splitlines()[-1] == "noticed by none of 1 test" and code == 1


def test_a_package_without_a_version_is_told_before_a_test_runs(ask, tmp_path):
    shutil.rmtree(tmp_path / "kept_plan-1.2.dist-info")
    told, code, _ = ask("test_plan.py::test_one")
    assert code == 2 and told.count("\n") == 1 and "neither metadata" in told


@pytest.mark.parametrize("versions, why", [("==2", "is installed"), ("1.2", "write for example")])
def test_versions_that_are_not_there_are_told_at_once(ask, versions, why):
    told, code, _ = ask("test_plan.py::test_one", "--versions", versions)
    assert code == 2 and why in told and "pytest" not in told and told.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["test_plan.py"], "test_plan::test_red fails with nothing taken out: "),
        (["test_plan.py::test_none"], "pytest ran no test to its end: 1 skipped"),
        (["nowhere.py"], "file or directory not found: nowhere.py"),
        (["test_plan.py::test_one", "--versions", "==2"], "kept_plan 1.2 is installed; the edit of"),
        (["--put", "..."], "--put ... changes nothing"),
        (["test_plan.py::test_skips"], "with it taken out 1 of 2 tests ran, and pytest ended with 0: "),
        (["test_plan.py::test_leaves"], "with it taken out 1 of 2 tests ran, and pytest ended with 2: "),
        (["test_plan.py::test_aborts"], "pytest ran no test to its end: signal 6 ended it"),
        (
            ["test_plan.py::test_now_and_then"],
            "test_now_and_then fails now and then, with nothing",
        ),
        (["--find", "self.plan = 3"], "looked for `self.plan = 3` in kept_plan.plan:Planner.capture"),
    ],
)
def test_what_says_nothing_about_tests_is_told_as_such(ask, arguments, why):
    told, code, error = ask(*arguments)
    assert code not in (0, 1) or why in error
    assert why in told + error and "noticed" not in told
