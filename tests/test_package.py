"""The wheel brings all that the commands need: they work far from any clone, where nothing can be written.

It is built without a network, by the backend that the extra `test` brings, and runs with the packages of this
environment.
"""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from mrv2lab.results import RECORDS

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
BUILD = "import sys; from hatchling import build; print(build.build_sdist(sys.argv[1]))"

pytestmark = pytest.mark.package

PROGRAM = """
import torch
x, state = torch.ones(3), {"n": 2}
def step():
    return x * state["n"]
def vary():
    state["n"] = 3
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the installed wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT]
    subprocess.run(build, check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    install = [*PIP, "install", "--no-deps", "--no-index", "--target", folder / "installed", wheel]
    subprocess.run(install, check=True, cwd=folder)
    return folder / "installed"


@pytest.fixture
def mrv2lab(installed, tmp_path):
    """The command as installed, in a folder in which nothing can be written; home lies there too."""
    here = tmp_path / "here"
    here.mkdir(mode=0o555)
    own = ("MRV2LAB", "XDG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {"PYTHONPATH": str(installed), "HOME": str(here)}
    environment["MPLCONFIGDIR"] = str(tmp_path / "matplotlib")

    def run(*args):
        command = [sys.executable, installed / "bin" / "mrv2lab", *args]
        return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)

    yield run
    assert list(here.iterdir()) == []  # root may write anywhere, and should not


def test_every_record_is_in_the_wheel(installed):
    kept = {path.relative_to(RECORDS): path.read_bytes() for path in RECORDS.rglob("*.*")}
    brought = installed / "mrv2lab" / "data"
    assert {path.relative_to(brought): path.read_bytes() for path in brought.rglob("*.*")} == kept
    assert len(kept) > 20


def test_every_file_of_the_package_is_in_the_wheel(installed):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "mrv2lab"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in names if not (installed / name).is_file()] == []
    assert {"mrv2lab/questions.toml", "mrv2lab/style.css"} <= set(names)


def test_it_has_a_version(mrv2lab):
    assert re.fullmatch(r"mrv2lab \d+\.\d+\.\d+.*\n", mrv2lab("--version").stdout)


PRINTED = {
    "list": (["list"], "zero_mapping"),
    "doctor": (["doctor"], "mrv2lab run --all --rung emulated"),
    "progress": (["progress"], "exercise lora_short_circuit"),
    "run": (
        ["run", "breakable_graph", "--rung", "emulated", "--variant", "whole_graph", "--batch-size", "1"],
        "wrong",
    ),
    "audit recorded": (["audit", "recorded"], "recorded: emulated"),
    "pair": (["mystery", "--pair"], "before"),
    "mystery": (["mystery", "7", "--rung", "emulated", "--solution"], "Repair: "),
    "live": (["live", "lora_short_circuit"], "recorded: NVIDIA H200"),
    "record": (["record", "--plan", "--rung", "emulated"], "audit.json"),
}


@pytest.mark.parametrize(("args", "shown"), PRINTED.values(), ids=PRINTED)
def test_a_command_works(mrv2lab, args, shown):
    done = mrv2lab(*args)
    assert (done.returncode, shown in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_step_is_audited(mrv2lab, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = mrv2lab("audit", "step", tmp_path / "program.py:step", "--backend", "emulated")
    assert done.returncode == 1 and "frozen-host-value: state['n']" in done.stdout, done.stderr


def test_a_report_is_written_where_it_may_be(mrv2lab, installed, tmp_path):
    record = installed / "mrv2lab" / "data" / "results" / "lora_short_circuit" / "source-cpu.json"
    done = mrv2lab("report", record, "--output", tmp_path / "report.html")
    assert done.returncode == 0, done.stderr
    assert "lora_short_circuit: recorded" in (tmp_path / "report.html").read_text()


def test_a_record_names_no_commit_of_the_repository_that_the_package_lies_in(mrv2lab, installed, tmp_path):
    subprocess.run(["git", "init", "--quiet", installed], check=True)
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody"]
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "."], cwd=installed, check=True)
    args = [*PRINTED["run"][0], "--set", "num_layers=1", "--save", "--data", tmp_path / "data"]
    assert mrv2lab(*args).returncode == 0
    kept = (tmp_path / "data" / "breakable_graph" / "emulated-cpu.json").read_text()
    assert '"commit": "unknown"' in kept


def test_the_sdist_holds_records_and_tests(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BUILD, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tarfile.open(tmp_path / done.stdout.strip()) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"data/audit.json", "tests/test_package.py", "notebooks/00_start_here.ipynb", "Makefile"} <= names


def test_the_citation_names_no_person():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["authors"] == [{"name": "mrv2lab contributors"}]
    assert cited["license"] == "Apache-2.0" and "email" not in str(cited)


@pytest.mark.parametrize("name", ["bug", "case", "finding"])
def test_there_is_a_form_for_each_kind_of_issue(name):
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids) >= 2
    assert all(part["attributes"]["label"] for part in form["body"] if part["type"] != "markdown")
