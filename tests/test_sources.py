"""What a record depends on: read off imports, hashed by meaning."""

import ast
import shutil

import pytest

from mrv2lab import sources
from mrv2lab.results import Provenance, Record, Run, load, provenance

KINDS = {
    "emulated": lambda: sources.of_run("lora_short_circuit", "emulated"),
    "cuda": lambda: sources.of_run("lora_short_circuit", "cuda"),
    "cuda, stages": lambda: sources.of_run("pp_eager_fallback", "cuda"),
    "source": lambda: sources.of_run("lora_short_circuit", "source"),
    "vllm": lambda: sources.of_run("lora_short_circuit", "vllm"),
    "matrix": lambda: sources.of_audit("lora_short_circuit", "emulated"),
    "matrix, stages": lambda: sources.of_audit("pp_eager_fallback", "emulated"),
    "matrix, cuda": lambda: sources.of_audit("lora_short_circuit", "cuda"),
    "mystery": lambda: sources.of("emulated", "mystery.survey"),
    "bench": lambda: sources.of("cuda", "bench"),
    "engine": lambda: sources.of("vllm", "live.audited"),
}
MINI = {"emulated", "cuda", "cuda, stages", "matrix", "matrix, stages", "matrix, cuda", "mystery"}
AUDITS = {"matrix", "matrix, stages", "matrix, cuda", "mystery", "bench", "engine"}
ON_GPU = {"cuda", "cuda, stages", "matrix, cuda", "bench", "vllm", "engine"}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that a test may change."""
    shutil.copytree(sources.PACKAGE, tmp_path / "mrv2lab", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "PACKAGE", tmp_path / "mrv2lab")
    yield tmp_path / "mrv2lab"
    sources.READ.clear()


@pytest.fixture(scope="module")
def files():
    """Of each kind, as the package is."""
    return {kind: of().keys() for kind, of in KINDS.items()}


@pytest.mark.parametrize(
    ("file", "kinds"),
    [
        ("__init__.py", set(KINDS)),
        ("runner/scheduler.py", MINI),
        ("runner/pp_executor.py", {"cuda, stages", "matrix, stages"}),
        ("cases/__init__.py", set()),
        ("cases/matrix.py", {"matrix", "matrix, stages", "matrix, cuda"}),
        ("cases/lora_short_circuit.py", {"emulated", "cuda", "matrix", "matrix, cuda"}),
        ("cases/workload.py", MINI),
        ("verdict.py", set(KINDS)),
        ("graphs/emulated.py", {"emulated", "source", "matrix", "matrix, stages", "mystery"}),
        ("graphs/cuda.py", ON_GPU),
        ("audit/driver.py", AUDITS),
        ("mystery/faults.py", {"mystery"}),
        ("upstream/probes/lora_short_circuit.py", {"source", "vllm", "engine"}),
        ("live/worker.py", {"vllm", "engine"}),
        ("tables.py", set()),
        ("cases/exercises/base.py", set()),
        ("prose.py", set()),
        ("upstream/releases.py", set()),
        ("cli.py", set()),
    ],
)
def test_a_file_matters_to_the_right_records_and_to_no_others(files, file, kinds):
    assert (sources.PACKAGE / file).exists()
    assert {kind for kind, known in files.items() if file in known} == kinds


def test_a_changed_constant_is_seen_and_a_record_says_where(package):
    made = provenance(0, uses_gpu=False, made_by=KINDS["emulated"]())
    told = f"{made.machine}, {made.date:%Y-%m-%d}"
    assert made.since == "" and made.label == told
    for file, old in (("runner/scheduler.py", " 1"), ("graphs/memory.py", " None")):
        text = (package / file).read_text()
        assert old in text
        (package / file).write_text(text.replace(old, " 2", 1))
    sources.READ.clear()
    assert made.since == "; the code has changed since" and made.changed == ["graphs", "runner"]
    assert made.label == f"{told}; the code has changed since"


def test_a_file_that_is_gone_is_a_change(package):
    made = KINDS["emulated"]()
    (package / "verdict.py").unlink()
    assert sources.parts(sources.changed(made)) == ["verdict"]


@pytest.mark.parametrize(
    "file",
    [
        *("/dev/zero", "/etc/passwd", "../setup.py", "cases/../verdict.py", "./verdict.py", "verdict.py\n"),
        *("sources.toml", "cases", "", "a\0.py", "x" * 5000 + ".py", "verdict.py/x.py"),
    ],
)
def test_what_is_no_module_of_the_package_is_not_opened_and_counts_as_gone(file, package, monkeypatch):
    (package.parent / "setup.py").write_text("pass")
    verdict = {"verdict.py": sources.of("emulated", "verdict")["verdict.py"]}
    read, opened = sources.Path.read_bytes, []
    monkeypatch.setattr(sources.Path, "read_bytes", lambda path: opened.append(path) or read(path))
    assert sources.changed({file: "0"} | verdict) == [file]
    assert {path.name for path in opened} <= {"verdict.py", "x.py", "x" * 5000 + ".py"}
    assert all(path.is_relative_to(package) and ".." not in path.parts for path in opened)


def test_a_module_that_is_no_python_has_changed(package):
    made = {"verdict.py": sources.of("emulated", "verdict")["verdict.py"]}
    for wrong in (b"def", b"\xff", b"x\0"):
        (package / "verdict.py").write_bytes(wrong)
        sources.READ.clear()
        assert sources.changed(made) == ["verdict.py"]


def test_comments_docstrings_and_format_change_nothing(package):
    made = KINDS["emulated"]()
    for file in map(package.joinpath, made):
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node):
                node.body[0].value.value = "Other words."
        file.write_text(f"# a comment\n\n{ast.unparse(tree)}\n")  # without comments, in another format
    sources.READ.clear()
    assert sources.changed(made) == []


@pytest.mark.parametrize(
    "code", ["x = 1", "x = 1.0", "x = 'a'", "x = b'a'", "x = None", "x = ...", "x = [None]", "x = f'{a}b'"]
)
def test_what_differs_differs(code):
    """Also where empty things are left out: none of these means what another means."""
    others = ["x = 0", "x = ''", "x = []", "x = ()", "x = f'{a}'", "x: int", "x = 'b'", "pass", "del x"]
    means = [sources._meaning(ast.parse(text)) for text in [code, *others]]
    assert len(set(means)) == len(means)


def test_every_python_reads_the_same():
    """3.12 gave functions type parameters, and f-strings empty pieces."""
    function, text = ast.parse("def f(): g()").body[0], ast.parse("f'{a:{w}}'").body[0].value
    newer = ast.FunctionDef(**{name: value for name, value in ast.iter_fields(function)})
    newer._fields = (*ast.FunctionDef._fields, "type_params")
    newer.type_params = []
    assert sources._meaning(newer) == sources._meaning(function)
    format_spec = text.values[0].format_spec
    assert isinstance(format_spec, ast.JoinedStr)
    longer = ast.JoinedStr([*format_spec.values, ast.Constant("")])
    assert sources._meaning(longer) == sources._meaning(format_spec)


def test_names_that_are_left_out_exist():
    named = {*sources.APART, *(name for names in sources.ELSEWHERE.values() for name in names)}
    assert [
        name for name in named if sources._names(sources._file(f"mrv2lab.{name}") or "") & {name} == set()
    ] == []


RUN = """
import sys
from pathlib import Path
import mrv2lab
from mrv2lab.cases import get

case = get("lora_short_circuit")
root, ran = str(Path(mrv2lab.__file__).parent), set()
def note(frame, event, arg):
    if event == "call" and frame.f_code.co_filename.startswith(root):
        ran.add(frame.f_code.co_filename[len(root) + 1:])
sys.setprofile(note)
{what}
sys.setprofile(None)
tell(ran)
"""
WHAT = {
    "emulated": "case.run('zero_mapping', rung='emulated', batch_size=1, num_steps=9, num_layers=1)",
    "matrix": "case.audit('zero_mapping', rung='emulated', num_layers=1)",
}


@pytest.mark.parametrize("kind", WHAT)
def test_what_runs_is_what_a_record_depends_on(kind, in_fork):
    ran = in_fork(RUN.format(what=WHAT[kind]))
    assert {"runner/model_runner.py", "graphs/emulated.py"} <= ran
    apart = {file for file in ran if sources._names(file) & {*sources.APART}}
    assert ran - apart <= set(KINDS[kind]())


# ---- records that do not know ----


def test_a_record_of_before_loads_and_counts_as_stale(tmp_path):
    run = Run(
        case="c",
        variant="v",
        role="buggy",
        rung="emulated",
        verdict="wrong",
        expected="wrong",
        errors=[],
        step_modes=[],
    )
    made = provenance(0, uses_gpu=False)
    old = made.model_dump(mode="json", exclude={"sources", "seconds"})
    path = tmp_path / "old.json"
    path.write_text(
        Record(provenance=made, runs=[run]).model_dump_json(exclude={"provenance": {"sources", "seconds"}})
    )
    kept = load(path).provenance
    assert kept == Provenance(**old) and kept.seconds is None
    assert kept.since == "; the code may have changed since"
