"""The wheel brings all that the commands need: they work far from any clone, where nothing can be written.

It is built without a network, by the backend that the extra `test` brings, and runs with the packages of this
environment.
"""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder

from mrv2lab.results import RECORDS

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
ONE_AFTER_THE_OTHER = """
import json, sys
from typer.testing import CliRunner
from mrv2lab.cli import app
for args in json.load(sys.stdin):
    ran = CliRunner().invoke(app, args)
    print(json.dumps([ran.exit_code, ran.output if ran.exit_code in (0, 1, 2) else repr(ran.exception)]))
"""

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


@pytest.fixture(scope="module")
def mrv2lab(installed, tmp_path_factory):
    """Python with the wheel, in a folder in which nothing can be written; home lies there too."""
    folder = tmp_path_factory.mktemp("away")
    here = folder / "here"
    here.mkdir(mode=0o555)
    own = ("MRV2LAB", "XDG")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    environment |= {
        "PYTHONPATH": str(installed),
        "HOME": str(here),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
    }

    def run(*command, **options):
        options |= {"cwd": here, "env": environment, "capture_output": True, "text": True}
        return subprocess.run([sys.executable, *command], **options)

    yield run
    assert list(here.iterdir()) == []  # root may write anywhere, and should not


@pytest.fixture(scope="module")
def done(mrv2lab, installed, tmp_path_factory):
    """Commands run in turn by one process: the folder that they may write to, status and output of each.

    The wheel lies in a repository that is not its own.
    """
    folder = tmp_path_factory.mktemp("written")
    (folder / "program.py").write_text(PROGRAM)
    subprocess.run(["git", "init", "--quiet", installed], check=True)
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody"]
    subprocess.run(["git", *who, "commit", "--quiet", "--allow-empty", "-m", "."], cwd=installed, check=True)
    record = installed / "mrv2lab" / "data" / "results" / "lora_short_circuit" / "source-cpu.json"
    commands = {name: args for name, (args, _) in PRINTED.items()} | {
        "step": ["audit", "step", f"{folder / 'program.py'}:step", "--backend", "emulated"],
        "report": ["report", record, "--output", folder / "report.html"],
        "saved": [*PRINTED["run"][0], "--set", "num_layers=1", "--save", "--data", folder / "data"],
    }
    ran = mrv2lab("-c", ONE_AFTER_THE_OTHER, input=json.dumps(list(commands.values()), default=str))
    assert ran.returncode == 0, ran.stderr
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    return folder, dict(zip(commands, map(tuple, told), strict=True))


def test_every_record_is_in_the_wheel(installed):
    kept = {path.relative_to(RECORDS): path.read_bytes() for path in RECORDS.rglob("*.*")}
    brought = installed / "mrv2lab" / "data"
    files = [path for path in brought.rglob("*.*") if path.suffix != ".pyc"]  # pip compiles wild pairs
    assert {path.relative_to(brought): path.read_bytes() for path in files} == kept
    assert len(kept) > 20


def test_every_file_of_the_package_is_in_the_wheel(installed):
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "mrv2lab"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in names if not (installed / name).is_file()] == []
    assert {"mrv2lab/questions.toml", "mrv2lab/style.css"} <= set(names)


def test_vllm_finds_its_plugin_in_the_wheel(installed):
    [wheel] = distributions(name="mrv2lab", path=[str(installed)])
    [found] = wheel.entry_points.select(group="vllm.general_plugins")
    assert (installed / found.module).with_suffix(".py").is_file()


def test_the_command_is_installed(mrv2lab, installed):
    told = mrv2lab(installed / "bin" / "mrv2lab", "--version")
    assert re.fullmatch(r"mrv2lab \d+\.\d+\.\d+.*\n", told.stdout), told.stderr


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


@pytest.mark.parametrize("name", PRINTED)
def test_a_command_works(done, name):
    status, printed = done[1][name]
    assert (status, PRINTED[name][1] in printed) == (0, True), printed


def test_a_step_is_audited(done):
    status, printed = done[1]["step"]
    assert status == 1 and "frozen-host-value: state['n']" in printed, printed


def test_a_report_is_written_where_it_may_be(done):
    folder, told = done
    assert told["report"][0] == 0, told["report"][1]
    assert "lora_short_circuit: recorded, rung source" in (folder / "report.html").read_text()


def test_a_record_names_no_commit_of_the_repository_that_the_package_lies_in(done):
    folder, told = done
    assert told["saved"][0] == 0, told["saved"][1]
    kept = (folder / "data" / "breakable_graph" / "emulated-cpu.json").read_text()
    assert '"commit": "unknown"' in kept


def test_the_sdist_holds_records_and_tests():
    """As the backend lists them: to compress them takes seconds and shows no more."""
    names = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
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
