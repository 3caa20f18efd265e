"""Setting up on any machine: who is refused and in which words, what the pins hold, what is fetched."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LINUX = {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"}
MAC = {"sys_platform": "darwin", "os_name": "posix", "platform_system": "Darwin", "platform_machine": "arm64"}
MACHINES = {
    "Linux x86-64": LINUX | {"platform_machine": "x86_64"},
    "Linux arm64": LINUX | {"platform_machine": "aarch64"},
    "macOS arm64": MAC,
}
PYTHONS = ["3.11", "3.12", "3.13"]


def module(path: str):
    """One of the files that run before the package is there."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """Run make, whether or not the tests themselves were started by one."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=cwd, env=env, capture_output=True, text=True)


def a_clone(folder: Path) -> Path:
    """As much of one as make asks for."""
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def test_notebooks_are_run_in_a_folder_whose_name_has_a_space(tmp_path):
    folder = a_clone(tmp_path / "a clone")
    told = make("-n", "notebooks", cwd=folder).stdout.replace("\\\n", " ").splitlines()
    [words] = [shlex.split(line) for line in told if line.startswith("MRV2LAB_PROGRESS=")]
    assert words[:2] == [f"MRV2LAB_PROGRESS={folder}/out/progress.json", ".venv/bin/jupyter"]


def test_the_workbook_says_so_where_its_notebooks_are_gone(tmp_path):
    folder = a_clone(tmp_path / "clone")
    (folder / ".venv").mkdir()
    (folder / ".venv" / ".stamp-cpu").touch()
    told = make("lab", "STACK=cpu", cwd=folder)
    assert told.returncode and told.stderr.startswith("No notebooks/00_start_here.ipynb here: git restore")


# ---- who listens ----


@pytest.mark.parametrize("flags, address", [("--no-browser", "127.0.0.1"), ("--ip=0.0.0.0", "0.0.0.0")])
def test_jupyter_is_given_one_address(flags, address):
    """It refuses two. In a container it has to be the container's."""
    told = make("-n", "lab", f"LAB_FLAGS={flags}").stdout
    assert re.findall(r"--ip=(\S+)", told) == [address]


EMPTY = "".join(
    f"c.{name}.token = ''\n" for name in ("IdentityProvider", "PasswordIdentityProvider", "ServerApp")
)
LAB = """
import runpy
from jupyterlab import labapp

def main():
    server = labapp.LabApp.initialize_server(argv=["--no-browser", "--port=0", "--allow-root"])
    who = server.identity_provider
    print(who.auth_enabled, bool(who.token), f"token={who.token}" in server.local_url)

labapp.main = main
runpy.run_path("site/lab.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    "own, told",
    [
        (EMPTY, "True True True"),
        ("c.PasswordIdentityProvider.hashed_password = 'argon2:x'\n", "True False False"),
    ],
    ids=["an empty token", "a password"],
)
def test_jupyter_asks_for_a_token_whatever_the_users_own_configuration_says(own, told, tmp_path):
    """Or for a password, where one is set."""
    assert "-P site/lab.py " in make("-n", "lab").stdout
    (tmp_path / "jupyter_server_config.py").write_text(own)
    env = os.environ | {f"JUPYTER_{name}_DIR": str(tmp_path) for name in ("CONFIG", "DATA", "RUNTIME")}
    command = [sys.executable, "-P", "-c", LAB]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == [told], done.stderr


# ---- who may ----


@pytest.mark.parametrize(
    "version, system, machine, words",
    [
        ((3, 11), "Linux", "x86_64", None),
        ((3, 13), "Linux", "aarch64", None),
        ((3, 12), "Darwin", "arm64", None),
        ((3, 10), "Linux", "x86_64", "this is 3.10"),
        ((3, 14), "Darwin", "arm64", "this is 3.14"),
        ((3, 12), "Darwin", "x86_64", "Apple silicon, and this Python is for Darwin on x86_64"),
        ((3, 12), "Windows", "AMD64", "WSL 2"),
        ((3, 12), "Linux", "i686", "Linux on i686"),
    ],
)
def test_one_sentence_says_why_not_here(version, system, machine, words):
    told = module("requirements/supported.py").refusal(version, system, machine)
    if words is None:
        assert told is None
    else:
        assert words in told and told.endswith(".") and "\n" not in told


def test_the_pythons_are_those_of_the_package():
    supported = module("requirements/supported.py")
    text = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">=3.{supported.FIRST[1]},<3.{supported.LAST[1] + 1}"' in text


def set_up_with(python, folder):
    """`make setup` in a folder, where this shell script is Python."""
    script = folder / "python3"
    script.write_text(f"#!/bin/sh\n{python}\n")
    script.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "requirements"):
        (folder / name).symlink_to(ROOT / name)
    return make("setup", "STACK=cpu", f"PYTHON={script}", cwd=folder)


def test_make_refuses_in_that_one_sentence(tmp_path):
    done = set_up_with("echo 'mrv2lab needs another Python.' >&2; exit 1", tmp_path)
    assert done.returncode and done.stdout == ""
    assert [line for line in done.stderr.splitlines() if not line.startswith("make")] == [
        "mrv2lab needs another Python."
    ]
    assert not (tmp_path / ".venv").exists()


def test_a_stage_that_fails_shows_the_end_of_the_log_and_one_that_works_does_not(tmp_path):
    done = set_up_with("[ $1 = -m ] || exit 0\necho what went wrong; exit 1", tmp_path)
    said = done.stdout.splitlines()
    assert done.returncode and "to download" in said[0]
    assert said[1:] == [
        "  a Python environment in .venv",
        (tmp_path / "out/setup.log").read_text().splitlines()[0],
        "what went wrong",
        "Stopped at: a Python environment in .venv. All of it: out/setup.log",
    ]


def test_a_change_of_stack_that_is_interrupted_is_not_ready(tmp_path):
    """.venv then holds parts of both."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".stamp-gpu").touch()
    assert set_up_with("[ $1 = -m ] || exit 0; exit 1", tmp_path).returncode
    assert not (tmp_path / ".venv" / ".stamp-gpu").exists()


# ---- pins ----


def installed(stack: str, machine: str, python: str) -> dict[str, str]:
    """Version by name of what pip takes from a file of pins there."""
    there = MACHINES[machine] | {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    lines = (ROOT / f"requirements/{stack}.txt").read_text().splitlines()
    found = [Requirement(line.split(" #")[0].strip(" \\")) for line in lines if line and line[0] not in " #"]
    taken = [req for req in found if req.marker is None or req.marker.evaluate(there)]
    assert len({req.name for req in taken}) == len(taken)
    return {req.name: str(req.specifier) for req in taken}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("stack", ["cpu", "cpu-source"])
def test_pins_are_for_each_machine_and_python(stack, machine, python):
    pins = installed(stack, machine, python)
    assert pins["torch"] == installed(stack, "Linux x86-64", "3.11")["torch"]
    assert ("triton" in pins) == machine.startswith("Linux")
    assert ("appnope" in pins) == machine.startswith("macOS")
    assert ("overrides" in pins) == (python == "3.11")
    assert not {"colorama", "pywinpty"} & set(pins)


def test_versions_are_the_same_everywhere():
    everywhere = [installed("cpu", machine, python) for machine in MACHINES for python in PYTHONS]
    versions = {(name, version) for pins in everywhere for name, version in pins.items()}
    assert len(versions) == len({name for name, _ in versions})


# ---- where it is written down once more ----


@pytest.mark.parametrize("name, stack", [("Dockerfile", "cpu"), ("Dockerfile.gpu", "gpu")])
def test_containers_are_set_up_by_make_on_a_python_that_is_supported(name, stack):
    text = (ROOT / name).read_text()
    version = re.search(r"^FROM python:3\.(\d+)", text, re.MULTILINE)
    supported = module("requirements/supported.py")
    assert supported.FIRST <= (3, int(version[1])) <= supported.LAST
    assert f"make setup STACK={stack}" in text and f'"make", "lab", "STACK={stack}"' in text


def test_the_dev_container_builds_a_stage_that_is_there():
    told = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    build = told["build"]
    text = (ROOT / ".devcontainer" / build["dockerfile"]).read_text()
    assert f"AS {build['target']}\n" in text
    assert told["postCreateCommand"] == "make setup STACK=cpu"


def test_what_git_leaves_out_a_container_leaves_out():
    ignored = {line.strip("*/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    left_out = {line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().splitlines()}
    assert left_out == ignored - {".egg-info"}


def test_the_quick_tests_are_there():
    listed = make("--eval", "show: ; @echo $(FAST)", "show").stdout.split()
    assert len(listed) > 5 and [path for path in listed if not (ROOT / path).exists()] == []
