"""What a triage asks, and how it narrows down. Its workers are stand-ins: no vLLM, no GPU."""

import sys

import pytest
from typer.testing import CliRunner

from mrv2lab import hunt, hunt_grid, triage
from mrv2lab.cli import app
from mrv2lab.live import audited, launch
from mrv2lab.results import provenance

WORKER = """
import json, os, sys
from pathlib import Path
[asked] = json.loads(Path(sys.argv[-1]).read_text())["settings"]["asked"]
assert asked["lengths"] == [5, 130] and asked["batches"] == [2] and asked["engine"]["block_size"] == 32
figures = {"error": 0.0, "usual": 0.0, "natural": 0.0, "natural_usual": 0.0, "replayed": 1, "steps": 1}
verdict = "eager" if asked["graphs"] == "NONE" else "correct"
if 8 in asked["sizes"] and asked["graphs"] == "FULL" and "folder" not in asked:
    if "CUDA_LAUNCH_BLOCKING" in os.environ:
        print("Thread 0x1 (most recent call first):", file=sys.stderr)
        sys.exit(1)
    verdict, figures["error"] = "wrong", 0.5
folder = Path(asked.get("folder", "")).name
if folder in ("left out", "failed", "eager"):
    verdict, figures = folder, {} if folder == "eager" else {"message": "ValueError: no"}
found = asked["labels"] | {"verdict": verdict, "graphs": asked["graphs"]} | figures
Path(asked["file"]).write_text(json.dumps(found))
print("{}")
"""


@pytest.fixture
def workers(tmp_path, monkeypatch):
    file = tmp_path / "worker.py"
    file.write_text(WORKER)
    monkeypatch.setattr(hunt, "COMMAND", (sys.executable, str(file)))
    monkeypatch.setattr(hunt, "check", lambda *words: None)
    monkeypatch.setattr(audited, "check", lambda case, release: None)
    made = provenance(0, uses_gpu=False)
    monkeypatch.setattr("mrv2lab.results.provenance", lambda seed, uses_gpu: made)


SIZES = 'compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16]}'


def test_the_smallest_set_of_sizes_is_found_and_told(workers, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-1")
    file = tmp_path / "report.md"
    asked = ["triage", "--model", "qwen3", "--engine", "block_size=32", "--engine", SIZES]
    told = CliRunner().invoke(app, [*asked, "--prompt-lengths", "5,130", "--report", str(file)])
    assert told.exit_code == 1
    rows = [
        line.split()[-6:] for line in told.stdout.splitlines() if "1,2" in line or line.startswith(" full  ")
    ]
    assert len(rows) >= 6
    report = file.read_text()
    ways = [line.split(" | ")[:3] for line in report.splitlines() if line.startswith("| ")][1:]
    assert [(way[2:], sizes, verdict) for way, sizes, verdict in ways] == [
        ("off", "1,2,4,8,16", "eager"),
        ("piecewise", "1,2,4,8,16", "correct"),
        ("full", "1,2,4,8,16", "wrong"),
        ("full, launches wait", "1,2,4,8,16", "hang"),
        ("full", "1,2", "correct"),
        ("full", "4,8,16", "wrong"),
        ("full", "4", "correct"),
        ("full", "8,16", "wrong"),
        ("full", "8", "wrong"),
    ]
    assert "Smallest that fails: full, sizes 8\n" in report and '"model": "qwen3"' in report
    for setting in ('"max_num_seqs": 16', '"enable_prefix_caching": false', '"seed": 0', '"block_size": 32',
                    '"VLLM_USE_V2_MODEL_RUNNER": "1"', '"off": {"mode": 0, "cudagraph_mode": "NONE"}',
                    "| full | 8 | wrong | FULL |", "also set: VLLM_API_KEY"):  # fmt: skip
        assert setting in report
    assert "sk-" not in report


@pytest.mark.parametrize(
    ("folder", "status", "said"),
    [
        ("left out", 2, "full graphs could not be asked: ValueError: no"),
        ("eager", 2, "full graphs could not be asked: hardly a step"),
        ("failed", 1, "ValueError: no"),  # without graphs too: no sizes are tried
    ],
)
def test_what_could_not_be_asked_is_told(workers, tmp_path, folder, status, said):
    (tmp_path / folder).mkdir()
    file = tmp_path / "report.md"
    asked = ["triage", "--model", str(tmp_path / folder), "--engine", "block_size=32"]
    told = CliRunner().invoke(app, [*asked, "--prompt-lengths", "5,130", "--report", str(file)])
    assert told.exit_code == status and said in file.read_text()
    assert ("could not be asked" in told.stdout) == (status == 2) and "nothing failed" not in file.read_text()
    assert file.read_text().count(f"| {folder} |") == len(triage.WAYS)


def test_a_triage_says_what_it_lacks(monkeypatch):
    told = CliRunner().invoke(app, ["triage", "--model", "no/folder"])
    assert told.exit_code == 2 and "--model no/folder: no such folder" in told.stderr
    monkeypatch.setattr(hunt, "missing_gpus", lambda number: ["an NVIDIA GPU"])
    monkeypatch.setattr(hunt, "installed", lambda: "not installed")
    told = CliRunner().invoke(app, ["triage", "--model", "llama"])
    assert told.exit_code == 2 and "triage needs an NVIDIA GPU and vLLM; docs/hunt.md" in told.stderr


def test_where_nothing_fails_no_sizes_are_tried(workers, tmp_path):
    given = triage.case(str(tmp_path), ["block_size=32"], [5, 130], 9)
    assert given.engine["max_model_len"] == 1024 and given.sizes == hunt_grid.FEATURES["plain"].sizes
    found = [step for step in triage.run(triage.replace(given, sizes=(1, 2)))]
    assert [way for way, *_ in found] == list(triage.WAYS)
    assert "nothing failed" in triage.report(given, found, provenance(0, uses_gpu=False))


def test_what_is_missing_is_told_and_no_record():
    told = CliRunner().invoke(app, ["triage", "--model", "qwen3"])
    assert told.exit_code == 2 and "triage needs an NVIDIA GPU and vLLM" in told.stderr
    assert "recorded" not in told.stderr and "--list" not in told.stderr


@pytest.mark.parametrize("lengths", ["", "5,", "0", "a"])
def test_what_is_no_list_of_lengths_is_refused(lengths):
    told = CliRunner().invoke(app, ["triage", "--model", "x", "--prompt-lengths", lengths])
    assert told.exit_code == 2 and "--prompt-lengths" in told.stderr


def test_a_worker_that_was_ended_for_its_time_hangs():
    job = launch.Job("triage", "full")
    labels = {"model": "m", "mode": "full", "feature": ""}
    for reason, tail, verdict in [
        ("timeout after 9 s", (), "hang"),
        ("exit status 1", ("Thread 0x1 (most recent call first):", "  File x"), "hang"),
        ("SIGSEGV", ("Fatal Python error", "Thread 0x1 (most recent call first):"), "failed"),
    ]:
        ended = launch.Ended(job, 1.0, crash=launch.Crash(reason, "said", tail))
        assert hunt.failed(ended, labels).verdict == verdict
