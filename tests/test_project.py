"""The project's own files agree with each other: versions, make targets, and the direction of imports."""

import ast
import graphlib
import html
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mrv2lab.cases import CASES
from mrv2lab.upstream import history

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# ---- versions ----


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """Requirement by name, for the lines that hold one (comments and pip options do not)."""
    texts = [line.split(" #")[0].strip(" \\") for line in lines]
    found = [Requirement(text) for text in texts if text and text[0] not in "#-"]
    return {canonicalize_name(req.name): req for req in found}


def pins(stack: str) -> dict[str, str]:
    """Version by name, as compiled for a stack. Anything but one exact version per line is an error."""
    found = requirements((ROOT / f"requirements/{stack}.txt").read_text().splitlines())
    versions = {name: re.fullmatch(r"==([\w.]+)", str(req.specifier)) for name, req in found.items()}
    assert all(versions.values()), [name for name, match in versions.items() if not match]
    return {name: match[1] for name, match in versions.items() if match}


def environment() -> tuple[list[str], list[str]]:
    """The conda part and the pip part of environment.yml."""
    *conda, last = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return conda, last["pip"]


@pytest.mark.parametrize(
    "stack, extras", [("cpu", ["cpu"]), ("cpu-source", ["cpu", "source"]), ("gpu", ["gpu", "source"])]
)
def test_compiled_pins_satisfy_pyproject(stack, extras):
    extras = [*extras, "lab", "site", "test"]
    asked = [*PROJECT["dependencies"], *(req for extra in extras for req in EXTRAS[extra])]
    compiled = pins(stack)
    for req in map(Requirement, asked):
        version = compiled.get(canonicalize_name(req.name), "nothing")
        assert version != "nothing" and version in req.specifier, f"{stack}.txt has {version} for {req}"


def test_both_stacks_run_notebooks_with_the_same_tools():
    cpu, gpu = pins("cpu"), pins("gpu")
    tools = ["jupyterlab", "ipykernel", "ipywidgets", "matplotlib", "nbval", "pytest", "ruff", "mypy"]
    tools += ["sphinx", "myst-nb", "furo", "playwright"]
    assert {tool: cpu[tool] for tool in tools} == {tool: gpu[tool] for tool in tools}


def test_what_source_adds_changes_no_pin():
    assert pins("cpu").items() <= pins("cpu-source").items()


@pytest.mark.parametrize("stack", ["cpu", "cpu-source"])
def test_every_pin_names_the_files_that_it_may_be(stack):
    text = (ROOT / f"requirements/{stack}.txt").read_text()
    hashes = {
        part.split("==")[0]: "--hash=sha256:" in part for part in re.split(r"\n(?=[\w.-]+==)", text)[1:]
    }
    assert hashes == dict.fromkeys(hashes, True) and len(hashes) == len(pins(stack))


def test_cpu_stack_pins_no_cuda_package():
    # torch 2.13.0 without a local label fits a CPU build and a CUDA build; these would force the CUDA one.
    assert [name for name in pins("cpu-source") if re.match("nvidia|cuda", name)] == []


def test_environment_yml_pins_what_gpu_txt_pins():
    _, lines = environment()
    stated = {name: str(req.specifier) for name, req in requirements(lines).items()}
    assert set(stated) == {"jupyterlab", "torch", "triton", "vllm", "matplotlib", "ipywidgets", "nbval"}
    compiled = pins("gpu")
    assert stated == {name: f"=={compiled[name]}" for name in stated}


def test_environment_yml_installs_this_project_on_a_python_it_supports():
    conda, lines = environment()
    python = next(item.removeprefix("python=") for item in conda if item.startswith("python="))
    assert python in Requirement(f"python{PROJECT['requires-python']}").specifier
    assert "-e .[gpu,source,lab,site,test]" in lines


def test_pre_commit_runs_the_pinned_ruff():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook for repo in config["repos"] for hook in repo["hooks"]}
    ruff = f"ruff=={pins('cpu')['ruff']}"
    assert hooks["ruff-check"]["additional_dependencies"] == [ruff]
    assert hooks["ruff-format"]["additional_dependencies"] == [ruff]


# ---- commands ----


@pytest.mark.parametrize("target", ["reproduce", "test", "lab", "site"])
def test_make_has_the_targets_the_readme_names(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"make {target}" in (ROOT / "docs/setup.md").read_text()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def rows_of(page: str) -> list[list[str]]:
    """The lines of verdicts on a page: variant, role, verdict, whether as stated, error, eager, ms."""
    found = re.findall(r"^   (\w+ .*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [
        re.split(r"\s{2,}", line.strip()) for line in found if len(re.split(r"\s{2,}", line.strip())) == 7
    ]


def test_the_verdicts_on_the_pages_are_those_that_variants_state():
    page = (ROOT / "docs/verdicts.md").read_text()
    shown = [case for case in CASES.values() if f"\n {case.name}\n" in page]
    stated = [[v.name, v.role, v.expected, "yes"] for case in shown for v in case.variants]
    told = [row[:4] for row in rows_of("docs/verdicts.md")]
    assert told == stated
    of_one = rows_of("README.md")
    assert of_one and all(row in rows_of("docs/verdicts.md") for row in of_one)


def test_the_picture_of_the_readme_is_what_a_run_shows():
    path = ROOT / "docs/one_step.py"
    spec = importlib.util.spec_from_file_location("one_step", path)
    one_step = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(one_step)
    drawn = [text.get_text() for text in one_step.picture().figure.axes[0].texts]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", path.with_suffix(".svg").read_text())
    stored = {" ".join(html.unescape(text).split()) for text in texts}
    lines = {" ".join(line.split()) for text in drawn for line in text.splitlines()}
    assert lines == stored


def test_ci_runs_what_the_readme_says():
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line[:1].isalpha()]
    assert commands[-1] == "make test"


def test_the_history_on_its_page_is_the_recorded_one():
    lines = (ROOT / "docs/releases.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| | 0.18.1"))
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[start : lines.index("", start)]
    ]
    told = {
        (row[0].replace("`", ""), release): word
        for row in rows
        for releases, word in zip(head[1:], row[1:], strict=True)
        for release in releases.split(", ")
    }
    assert told == {(cell.line, cell.release): cell.word for cell in history.load().cells}


# ---- nothing of one machine ----

MACHINE = re.compile(
    r"(?<![\w.])/(?:work|root|opt|tmp|home|Users)/"  # a path of somebody's machine
    r"|\bpypi\.\w"  # a registry's host
    r"|python[h]osted"
    r"|https?://[^\s/]*(?:registry|artifactory|nexus|mirror)"
)


def text_files() -> list[Path]:
    """Every file that git holds or would take, LICENSE and binary files left out."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name and name != "LICENSE"]
    return [file for file in files if file.is_file() and b"\0" not in file.read_bytes()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_file_names_a_machine_or_a_registry():
    files = text_files()
    found = {file.relative_to(ROOT): MACHINE.search(file.read_text("utf-8", "replace")) for file in files}
    assert len(found) > 10
    assert {str(name): match[0] for name, match in found.items() if match} == {}


def test_no_data_of_others_is_unpickled():
    """`docs/security.md` says so. Stages write for each other in a folder of their own; forks try errors."""
    uses = re.compile(r"^(?:import|from) (?:cloud)?pickle|torch\.load\(|weights_only", re.M)
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if uses.search(path.read_text())
    }
    stages = {"runner/pp_executor.py", "cases/exercises/pp_eager_fallback.py"}
    assert found == stages | {"forks.py"}


# ---- imports point one way ----

# What each module or subpackage of mrv2lab may import of the others. A new one states its edges here.
MAY_IMPORT: dict[str, set[str]] = {
    "libtriton": set(),
    "triton_python": set(),
    "errors": set(),
    "locks": {"errors"},
    "looks": {"prose"},
    "progress": set(),
    "prose": {"errors"},
    "questions": {"prose"},
    "catalogue": {"errors"},
    "sources": {"prose"},
    "graphs": {"errors"},
    "kernels": {"graphs", "errors"},
    "runner": {"kernels", "graphs", "forks", "limits", "progress", "errors"},
    "audit": {"verdict", "graphs", "limits", "looks", "progress", "errors"},
    "results": {"catalogue", "sources", "errors"},
    "verdict": {"graphs", "results"},
    "crash": {"results"},
    "limits": {"errors"},
    "group": {"errors", "guesses", "journal", "mystery"},
    "journal": {"catalogue", "prose", "questions", "results", "errors"},
    "puzzles": {"cases", "graphs", "journal", "lifeline", "limits", "looks", "prose", "errors"},
    "guesses": {"questions", "prose"},
    "quiz": {"guesses", "questions", "journal", "looks", "errors"},
    "upstream": {
        "kernels",
        "graphs",
        "crash",
        "forks",
        "limits",
        "locks",
        "progress",
        "prose",
        "results",
        "source",
        "verdict",
        "errors",
    },
    "source": {"looks", "errors"},
    "svg": set(),
    "bench": {"audit", "graphs", "kernels", "results", "verdict"},
    "plots": {"audit", "bench", "timed", "tables", "looks", "prose", "results", "svg", "verdict", "errors"},
    "timeline": {"plots", "audit", "looks", "prose", "errors"},
    "tables": {"bench", "timed", "prose", "upstream", "audit", "looks", "results", "verdict", "errors"},
    "terminal": {"prose", "tables", "upstream", "results"},
    "described": {"tables", "audit", "graphs", "results", "errors"},
    "graph_diff": {"described", "tables", "results", "errors"},
    "dispatch": {"tables", "upstream"},
    "hunt_grid": {"bench_engine", "live", "upstream", "results", "sources", "errors"},
    "hunt_told": {"hunt_grid", "live", "upstream", "results"},
    "hunt": {"hunt_grid", "hunt_told", "live", "results", "errors"},
    "triage": {"hunt", "hunt_grid", "live", "results", "errors"},
    "cli_hunt": {
        "cli_graphs",
        "hunt",
        "hunt_grid",
        "hunt_told",
        "triage",
        "cases",
        "live",
        "results",
        "sources",
        "errors",
    },
    "cli_graphs": {"described", "dispatch", "graph_diff", "unfixed", "upstream", "results", "errors"},
    "unfixed": {"upstream", "errors"},
    "report": {"bench", "timed", "plots", "tables", "looks", "results", "upstream", "errors"},
    "record": {"forks", "locks", "prose", "cases", "live", "results", "errors"},
    "doctor": {"__init__", "prose", "upstream", "results"},
    "cases": {
        "forks",
        "catalogue",
        "prose",
        "live",
        "upstream",
        "runner",
        "kernels",
        "graphs",
        "audit",
        "results",
        "crash",
        "journal",
        "lifeline",
        "limits",
        "looks",
        "progress",
        "source",
        "sources",
        "tables",
        "verdict",
        "errors",
    },
    "live": {
        "audit",
        "upstream",
        "kernels",
        "graphs",
        "crash",
        "guard",
        "reads",
        "lifeline",
        "results",
        "sources",
        "timed",
        "verdict",
        "errors",
    },
    "widgets": {
        "journal",
        "mystery",
        "plots",
        "tables",
        "looks",
        "progress",
        "results",
        "cases",
        "live",
        "source",
        "errors",
    },
    "sweep": {"cases", "forks", "results", "sources", "errors"},
    "bench_sweep": {"bench", "sweep", "results"},
    "reads": {"audit", "graphs"},
    "guard": {"reads", "audit", "graphs", "errors"},
    "bench_guard": {"timed", "guard", "graphs", "results", "verdict", "errors"},
    "bench_lora": {"timed", "runner", "kernels", "graphs", "results", "verdict"},
    "bench_runner": {"timed", "runner", "graphs", "results", "verdict"},
    "timed": {"results", "errors"},
    "bench_engine": {"live", "timed", "errors"},
    "bench_server": {"bench_engine", "live", "audit", "timed", "errors"},
    "bench_stages": {"bench_engine", "live", "timed", "errors"},
    "testing": {"audit", "graphs", "results", "errors"},
    "wild": {"audit", "forks", "graphs", "results", "sources", "errors"},
    "forks": {"lifeline", "errors"},
    "lifeline": {"errors"},
    "mystery": {
        "limits",
        "prose",
        "cases",
        "runner",
        "kernels",
        "graphs",
        "audit",
        "crash",
        "journal",
        "looks",
        "progress",
        "results",
        "source",
        "sources",
        "tables",
        "verdict",
        "errors",
    },
}
MAY_IMPORT["cli"] = set(MAY_IMPORT)
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["__init__"] = MAY_IMPORT["cli"]  # it may offer names of the others to notebooks

PACKAGE = ROOT / "mrv2lab"
MODULES = sorted(PACKAGE.rglob("*.py"))


def unit(dotted: str) -> str:
    """`mrv2lab.graphs.base` -> `graphs`. A name that is no module comes from the package's __init__."""
    _, name, *_ = [*dotted.split("."), "__init__"]
    return name if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists() else "__init__"


def owner(file: Path) -> str:
    """The unit a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def absolute(node: ast.ImportFrom, package: tuple[str, ...]) -> str:
    """The module an import names, its leading dots resolved against the importing package."""
    base = package[: len(package) - node.level + 1] if node.level else ()
    return ".".join([*base, *filter(None, [node.module])])


def imported(file: Path) -> set[str]:
    """The units a file imports, wherever in the file it does so."""
    package = file.relative_to(ROOT).parent.parts
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{absolute(node, package)}.{alias.name}" for alias in node.names]
    return {unit(name) for name in names if name.split(".")[0] == "mrv2lab"}


def test_the_package_has_modules():
    assert {"errors", "graphs"} <= {owner(file) for file in MODULES}


def test_allowed_imports_hold_no_cycle():
    layers = {name: edges for name, edges in MAY_IMPORT.items() if name != "__init__"}
    graphlib.TopologicalSorter(layers).prepare()


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_point_one_way(file):
    importer = owner(file)
    assert importer in MAY_IMPORT, f"say in MAY_IMPORT what mrv2lab.{importer} may import"
    wrong = imported(file) - MAY_IMPORT[importer] - {importer}
    assert not wrong, f"mrv2lab.{importer} may not import mrv2lab.{', mrv2lab.'.join(sorted(wrong))}"


def test_the_package_itself_is_imported_in_no_time():
    """Processes that only watch others import it too."""
    command = "import mrv2lab, sys; print({'torch', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
