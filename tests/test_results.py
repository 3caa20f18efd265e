"""Records: whole or not there, checked when read."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mrv2lab import results, verdict
from mrv2lab.errors import RecordError
from mrv2lab.live import run as live_run
from mrv2lab.results import DATA, Latency, Record, Run, load, provenance
from mrv2lab.upstream.releases import TARGET

TIMES = ("median", "p20", "p80")
GOOD = {
    "case": "lora_short_circuit",
    "variant": "zero_mapping",
    "role": "buggy",
    "rung": "emulated",
    "verdict": "wrong",
    "expected": "wrong",
    "errors": [0.0, 0.5],
    "step_modes": ["eager", "graph"],
}


@pytest.fixture
def record():
    return Record(provenance=results.provenance(0, uses_gpu=False), runs=[Run(**GOOD)])


def test_a_record_comes_back_as_it_was(record, tmp_path):
    path = tmp_path / "new" / "emulated-cpu.json"
    record.save(path)
    kept = load(path)
    assert kept.provenance.seconds > 0  # from the start of this process on
    assert kept.provenance == record.provenance.model_copy(update={"seconds": kept.provenance.seconds})
    assert [run.variant for run in kept.runs] == [run.variant for run in record.runs]
    assert [p.name for p in path.parent.iterdir()] == ["emulated-cpu.json"]


def test_the_file_states_provenance_once_and_runs_know_it(record, tmp_path):
    record.save(tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text())
    assert set(document) == {"provenance", "runs"}
    assert "provenance" not in document["runs"][0]
    kept = load(tmp_path / "r.json")
    assert kept.runs[0].provenance == kept.provenance


def test_infinite_errors_survive_the_file(tmp_path):
    run = Run(**GOOD | {"errors": [0.0, math.inf]})
    Record(provenance=results.provenance(0, uses_gpu=False), runs=[run]).save(tmp_path / "r.json")
    assert load(tmp_path / "r.json").runs[0].max_error == math.inf


def test_an_unknown_key_begins_no_line_of_its_own(record, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(json.loads(record.to_json()) | {"\x1b[2J\nmrv2lab: all is well": 1}))
    with pytest.raises(
        RecordError, match=r"results file of mrv2lab: \?\[2J\?mrv2lab: all is well: no such key"
    ):
        load(path)


def damage(text):
    document = json.loads(text)

    def changed(**run):
        return json.dumps(document | {"runs": [document["runs"][0] | run]})

    right = {"case": "c", "role": "fixed", "verdict": "correct", "expected": "correct", "errors": [0.0, 0.0]}
    assert Record.model_validate_json(changed(**right))
    return {
        "cut off": text[: len(text) // 2],
        "not JSON": "hello",
        "another program's": json.dumps({"results": []}),
        "no runs": json.dumps(document | {"runs": []}),
        "unknown verdict": changed(verdict="fine"),
        "unknown field": changed(speed=3),
        "steps missing": changed(errors=[0.0]),
        "a right answer that is wrong": changed(verdict="correct", errors=[0.0, 5.0]),
        "a right answer that is no number": changed(verdict="eager", errors=["NaN", 0.0]),
        "a number of 4000 digits": changed(shape={"batch_size": 10**4000}),
        "a number of 64 bits and one": changed(kernels={"a": 2**64}),
        "a time without end": changed(
            verdict="correct", errors=[0, 0], latency_ms=dict.fromkeys(TIMES, "Infinity")
        ),
        "a time that is none": changed(
            verdict="correct", errors=[0, 0], latency_ms=dict.fromkeys(TIMES, "NaN")
        ),
        "more steps than anybody runs": changed(errors=[0.0] * 20_000, step_modes=["graph"] * 20_000),
        "more runs than anybody makes": json.dumps(document | {"runs": document["runs"] * 20_000}),
        "an error below 0": changed(errors=[-1.0, 0.5]),
        "an error that is no number": changed(errors=["NaN", 0.5]),
        "a right answer that an engine might give": changed(**right | {"errors": [0.0, 0.019]}),
        "a right answer without graphs": changed(**right | {"eager_share": 0.2}),
        "a share below 0": changed(eager_share=-3.0),
        "a share that is none": changed(eager_share="NaN"),
        "a right answer of an exception": changed(**right | {"message": "RuntimeError: boom"}),
        "a right answer with a traceback": changed(**right | {"log_tail": ["boom"]}),
        "a bug that is to be right": changed(case="c", expected="correct"),
        "another role than its variant's": changed(role="fixed"),
        "another statement than its variant's": changed(expected="crash"),
        "a GPU that was not there": changed(rung="cuda"),
        "a median out of order": changed(**right | {"latency_ms": {"median": 1, "p20": 5, "p80": 0.5}}),
        "speed of a wrong answer": changed(latency_ms={"median": 1, "p20": 1, "p80": 1}),
    }


@pytest.mark.parametrize(
    "kind", damage(Record(provenance=results.provenance(0, uses_gpu=False), runs=[Run(**GOOD)]).to_json())
)
def test_damaged_and_foreign_files_are_refused_in_one_line(kind, record, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(damage(record.to_json())[kind])
    with pytest.raises(RecordError) as caught:
        load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(RecordError, match="cannot be read"):
        load(tmp_path / "none.json")


def test_nothing_is_left_behind_when_writing_fails(record, tmp_path, monkeypatch):
    monkeypatch.setattr(results.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        record.save(tmp_path / "r.json")
    assert [*tmp_path.iterdir()] == []


def test_a_file_keeps_what_it_is(tmp_path):
    """Who may read it, and that it is a link, a pipe or a device."""
    mine, link, pipe = (tmp_path / name for name in ("mine", "link", "pipe"))
    mine.write_text("old")
    mine.chmod(0o600)
    link.symlink_to(mine)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        results.write(path, "new ☂")
    assert link.is_symlink() and mine.read_text("utf-8") == "new ☂" and mine.stat().st_mode & 0o777 == 0o600
    assert pipe.is_fifo() and os.read(reader, 99).decode() == "new ☂"
    os.close(reader)


def test_threads_may_write_one_file_and_nothing_of_others_is_removed(tmp_path):
    others = [tmp_path / name for name in ("r.2024999.tmp", "r.json.tmp")]
    for other in others:
        other.write_text("mine")
        os.utime(other, (0, 0))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: results.write(tmp_path / "r.json", str(number) * 9999), range(200)))
    assert len({*(tmp_path / "r.json").read_text()}) <= 3
    assert {*tmp_path.iterdir()} == {tmp_path / "r.json", *others}


def test_what_any_rung_takes_for_right_a_record_takes_too():
    ours = {rung: verdict.TOLERANCE for rung in ("emulated", "cuda", "source")}
    assert ours | {"vllm": live_run.TOLERANCE} == results.TOLERATED and results.ALLOWED == verdict.ALLOWED


def test_verdict_and_statement_are_compared():
    right = {"verdict": "correct", "errors": [0.0, 0.0]}
    assert Run(**GOOD).as_expected
    assert not Run(**GOOD | right).as_expected
    assert Run(**GOOD | right, latency_ms=Latency(median=1, p20=1, p80=2)).latency_ms


@pytest.mark.parametrize("path", sorted(DATA.glob("*/*.json")), ids=lambda p: p.stem)
def test_kept_records_are_whole_and_show_what_they_state(path):
    record = load(path)
    rung, release = record.runs[0].rung, record.provenance.vllm
    other = release if rung == "vllm" and release != TARGET else ""
    assert path.name == results.file_name(rung, record.provenance, other)
    assert {run.case for run in record.runs} == {path.parent.name}
    assert all(run.as_expected for run in record.runs)
    assert record.provenance.command.startswith("mrv2lab ")
    assert len(record.provenance.commit) == 40


def test_folders_are_made_on_the_way(record, tmp_path):
    path = tmp_path / "not" / "there" / "yet.json"
    record.save(path)
    assert path.exists()


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/usr/bin/mrv2lab", "run", "/a/folder/file.py:step"], "mrv2lab run file.py:step"),
        (["/some/where/pytest.py", "-x"], "pytest"),
    ],
)
def test_a_command_is_kept_without_the_places_of_the_machine(monkeypatch, argv, command):
    monkeypatch.setattr("sys.argv", argv)
    assert provenance(0, uses_gpu=False).command == command


def test_what_another_program_says_is_text_or_nothing():
    assert results._output(sys.executable, "-c", "print('NVIDIA H200')") == "NVIDIA H200"
    assert results._output(sys.executable, "-c", "pass") is None
    assert results._output(sys.executable, "-c", "raise SystemExit(1)") is None
    assert results._output("no-such-program") is None


def test_no_driver_is_named_where_no_gpu_was_used(monkeypatch):
    monkeypatch.setattr(results, "_output", lambda *command: command[0])
    made = provenance(0, uses_gpu=False)
    assert (made.gpu, made.driver) == (None, None)


def test_runs_of_another_release_are_not_the_rungs_own(record, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "DATA", tmp_path)
    for name in ("vllm-nvidia-h200", "vllm-0.26.0-nvidia-h200", "source-cpu"):
        run = record.runs[0].model_copy(update={"variant": name})
        record.model_copy(update={"runs": [run]}).save(tmp_path / "case" / f"{name}.json")

    def kept(*asked):
        return [run.variant for run in results.recorded("case", *asked)]

    assert kept("vllm") == ["vllm-nvidia-h200"] and kept("source") == ["source-cpu"]
    assert kept("vllm", "0.26.0") == ["vllm-0.26.0-nvidia-h200"] and kept("vllm", "0.24.0") == []


def test_what_is_open_already_is_written_to_and_not_replaced(tmp_path):
    log = tmp_path / "log"
    log.write_text("precious\n")
    write = (
        "from pathlib import Path; from mrv2lab import results; results.write(Path('/dev/stdout'), 'new\\n')"
    )
    with log.open("a") as out:
        subprocess.run([sys.executable, "-c", write], stdout=out, check=True)
    assert log.read_text() == "precious\nnew\n"


def test_links_that_lead_nowhere_are_an_error_that_names_them(tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    one.symlink_to(other)
    other.symlink_to(one)
    with pytest.raises(OSError, match=f"Too many levels of symbolic links: '{one}'"):
        results.write(one, "new")
    assert one.is_symlink() and other.is_symlink()


def test_a_file_that_its_owner_protects_is_left_alone(tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    kept.write_text("old")
    monkeypatch.setattr(results.os, "access", lambda path, mode: False)  # root may all the same
    with pytest.raises(PermissionError, match=f"Permission denied: '{kept}'"):
        results.write(kept, "new")
    assert kept.read_text() == "old"


def test_a_command_with_a_path_that_is_no_text_is_told_as_far_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mrv2lab", "run", "--data", os.fsdecode(b"d\xff")])
    assert results._command_line() == "mrv2lab run --data 'd\ufffd'"


def test_a_damaged_record_of_the_clone_is_to_be_brought_back_and_not_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RECORDS", tmp_path / "data")
    ours, theirs = tmp_path / "data" / "results" / "case" / "cuda.json", tmp_path / "theirs.json"
    for path, remedy in ((ours, "git restore data"), (theirs, "make one with mrv2lab run --save")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{")
        with pytest.raises(RecordError, match=rf"; {remedy}"):
            results.load(path)


@pytest.mark.parametrize("verdict", ["correct", "eager"])
def test_no_run_is_right_without_a_step(verdict):
    crash = next(run for run in results.recorded("lora_device_assert", "cuda") if run.verdict == "crash")
    with pytest.raises(ValueError, match=f"verdict '{verdict}' without a step"):
        Run.model_validate(crash.model_dump() | {"verdict": verdict})
