"""Recipes, plans, and what becomes of a recipe that fails. What makes records is stood in for."""

import json
import re
import subprocess
import sys
import threading
from dataclasses import replace
from math import inf
from pathlib import Path

import psutil
import pytest
import typer
from typer.testing import CliRunner

from mrv2lab import cli, record, results, sources
from mrv2lab.cases import CASES, matrix
from mrv2lab.cli import app
from mrv2lab.errors import BadInput
from mrv2lab.locks import held
from mrv2lab.record import RECIPES, Made, Recipe
from mrv2lab.results import RECORDS, Kept, load, provenance, provenance_of

SOURCES = sources.of("emulated", "verdict")
GONE = {"runner/gone.py": "0"}


def keep(path, **fields):
    """A file with numbers that the code as it is made, but for what is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = provenance(0, uses_gpu=False, made_by=SOURCES).model_copy(update=fields)
    path.write_text(Kept(provenance=made).to_json())


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A repository's data: fresh, stale, old, and one recipe whose file was never made."""
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    keep(tmp_path / "fresh.json", seconds=10.0)
    keep(tmp_path / "stale.json", seconds=20.0, sources=SOURCES | GONE)
    keep(tmp_path / "results" / "case" / "emulated-cpu.json", sources={})
    return tmp_path


FRESH, STALE = Recipe("fresh.json", "fresh", "emulated"), Recipe("stale.json", "stale", "emulated")
OLD, NEW = Recipe("results/case/emulated-*.json", "old", "emulated"), Recipe("new.json", "new", "emulated")
ALL = [FRESH, STALE, OLD, NEW]


def test_nothing_is_imported_from_the_folder_we_are_in(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    done = subprocess.run([*record.COMMAND, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def lines(steps):
    return [" ".join(str(step).split()) for step in steps]


def test_a_plan_begins_with_what_is_stale_and_rests_on_what_it_took_last_time(data):
    assert lines(record.plan(ALL, data)) == [
        "make 20 s stale.json: the code has changed since: runner",
        "make 120 s results/case/emulated-*.json: the code may have changed since",
        "make 120 s new.json: not there, or cannot be read",
        "make 10 s fresh.json: made by the code as it is",
    ]
    assert [step.recipe for step in record.plan(ALL, data, only_stale=True)] == [STALE, OLD, NEW]


@pytest.mark.parametrize(
    ("budget_s", "fitting"),
    [
        (inf, [STALE, OLD, NEW, FRESH]),
        (150, [STALE, OLD, FRESH]),
        (30, [STALE, FRESH]),
        (29, [STALE]),
        (0, []),
    ],
)
def test_a_plan_keeps_within_its_budget(data, budget_s, fitting):
    steps = record.plan(ALL, data, budget_s)
    assert [step.recipe for step in steps if step.fits] == fitting
    assert all(str(step).startswith("no time ") for step in steps if not step.fits)


def test_a_plan_names_what_is_missing_and_takes_no_time_for_it(data):
    wanting = replace(STALE, gpus=99, tool="no-such-tool")
    first, second = record.plan([wanting, FRESH], data, 10)
    assert not first.fits and second.fits
    assert str(first).startswith("not here ") and str(first).endswith("needs 99 NVIDIA GPUs and no-such-tool")


def test_what_is_written_elsewhere_goes_before_what_the_repository_holds(data, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    keep(elsewhere / "stale.json", seconds=7.0)
    [step] = record.plan([STALE], elsewhere)
    assert (step.since, step.seconds) == ("", 7.0)
    assert record.plan([FRESH], elsewhere)[0].since == ""  # as the repository says


def test_damaged_files_are_stale(data):
    (data / "fresh.json").write_text("{")
    assert record.since(data / "fresh.json") == "not there, or cannot be read"


@pytest.mark.parametrize(("text", "wanted"), [("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_a_budget_in_words(text, wanted):
    assert cli._seconds(text) == wanted


@pytest.mark.parametrize("text", ["20", "", "m", "-3m", "20 m", "20min"])
def test_a_budget_that_is_none(text):
    with pytest.raises(BadInput, match=r"--budget .*possible: a number and s, m or h"):
        cli._seconds(text)


# ---- what becomes of a recipe ----

PROGRAM = """
import json, os, sys, time
from pathlib import Path
words = sys.argv[1:]
path = Path(words[-1])
path = path / "case" / "emulated-cpu.json" if "--data" in words else path
def write(verdict):
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = [{"verdict": "correct"}, {"verdict": verdict}]
    path.write_text(json.dumps({"runs": runs, "cells": [{"word": "buggy"}]}))
if words[0] == "crashes":
    raise ZeroDivisionError("a typo")
if words[0] == "refuses":
    print("mrv2lab: unknown variant", file=sys.stderr)
    sys.exit(2)
if words[0] == "hangs":
    os.fork()
    time.sleep(600)
if words[0] == "dies":
    os.abort()
write("wrong" if words[0] == "differs" else "correct")
if words[0] == "cut_off":
    path.write_text(json.dumps({"provenance": {"seconds": None}, "rows": []}, indent=1))
    raise ZeroDivisionError("in the third row")
if words[0] == "fails":
    write("failed")
    sys.exit(1)
if words[0] == "goes_on":
    time.sleep(600)
sys.exit(words[0] == "differs")
"""


@pytest.fixture
def program(monkeypatch):
    """Stands in for mrv2lab: the first word says how it ends."""
    monkeypatch.setattr(record, "COMMAND", (sys.executable, "-c", PROGRAM))


def made(tmp_path, how, file="made.json", limit_s=inf):
    return record.make(Recipe(file, how, "emulated"), tmp_path, limit_s)


def test_a_record_is_made_where_it_belongs_and_its_verdicts_are_counted(program, tmp_path):
    assert made(tmp_path, "well").told == "made: 1 buggy, 2 correct"
    assert made(tmp_path, "well", "results/case/emulated-*.json").is_well
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    assert files == ["made.json", "results/case/emulated-cpu.json"]


def test_a_verdict_other_than_the_stated_one_is_kept_and_told(program, tmp_path):
    ended = made(tmp_path, "differs")
    assert (ended.told, ended.is_well) == ("made, NOT as stated: 1 buggy, 1 correct, 1 wrong", False)
    assert "wrong" in (tmp_path / "made.json").read_text()


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("crashes", "not made: ZeroDivisionError: a typo"),  # status 1, and yet no verdict
        ("refuses", "not made: mrv2lab: unknown variant"),
        ("dies", "not made: exit status -6, and not a word"),
        ("cut_off", "not made: ZeroDivisionError: in the third row"),
    ],
)
def test_a_recipe_that_fails_says_why_and_leaves_what_was_there(program, tmp_path, how, told):
    (tmp_path / "made.json").write_text("old")
    ended = made(tmp_path, how)
    assert (ended.told, ended.is_well) == (told, False)
    assert (tmp_path / "made.json").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_what_could_not_be_run_replaces_nothing_that_could(program, tmp_path):
    first = made(tmp_path, "fails")
    assert first.told == "made, NOT as stated: 1 buggy, 1 correct, 1 failed"
    assert made(tmp_path, "well").is_well
    whole = (tmp_path / "made.json").read_text()
    ended = made(tmp_path, "fails")
    assert ended.told.startswith("not made, for more of it has failed than before") and not ended.is_well
    assert (tmp_path / "made.json").read_text() == whole


@pytest.mark.parametrize(("of_file", "of_row", "is_so"), [(None, 1.0, True), (1.0, None, False)])
def test_a_file_was_cut_off_if_it_does_not_say_what_all_of_it_took(tmp_path, of_file, of_row, is_so):
    rows = [{"provenance": {"seconds": of_row}}]
    (tmp_path / "a.json").write_text(json.dumps({"provenance": {"seconds": of_file}, "rows": rows}, indent=1))
    assert record._is_cut_off(tmp_path / "a.json") is is_so


def test_what_was_kept_row_by_row_is_no_record_when_the_budget_is_spent(program, tmp_path):
    (tmp_path / "made.json").write_text("old")
    ended = made(tmp_path, "goes_on", limit_s=2.0)
    assert not ended.is_well and "budget was spent" in ended.told
    assert (tmp_path / "made.json").read_text() == "old"


def test_a_recipe_that_takes_too_long_is_ended_with_all_its_processes(program, tmp_path):
    ended = made(tmp_path, "hangs", limit_s=2)
    assert (ended.told, ended.is_well) == ("not made: ended, for the budget was spent", False)
    assert not [child for child in psutil.Process().children(recursive=True) if "hangs" in child.cmdline()]


# ---- one after the other ----


@pytest.fixture
def takes(monkeypatch):
    """Lets each recipe take so many seconds, by default one; none is really made."""

    def use(**seconds):
        def make(recipe, data, limit_s):
            return Made(seconds.get(recipe.command, 1.0), "made", True)

        monkeypatch.setattr(record, "make", make)

    return use


def names(data, budget_s):
    steps = record.plan(ALL, data, budget_s)
    return [f"{name}: {made.told}" for name, made in record.follow(steps, data, budget_s)]


def test_time_that_was_won_is_used_and_time_that_was_lost_is_told(data, takes):
    takes()
    everything = [f"{recipe.file}: made" for recipe in (STALE, OLD, NEW, FRESH)]
    assert names(data, 150) == everything  # of which one was not to fit
    takes(old=200.0)
    lost = "fresh.json: not made: no time was left for it"
    assert names(data, 150) == [*everything[:2], lost]


def test_one_that_fails_does_not_end_the_others(data, program):
    steps = record.plan([replace(STALE, command="crashes"), replace(NEW, command="well")], data)
    ended = list(record.follow(steps, data))
    assert [made.is_well for _, made in ended] == [False, True]


def test_growing_graphs_have_a_figure(data, takes, monkeypatch):
    takes()
    monkeypatch.setattr(record, "_run", lambda words, folder: seen.extend(words) or (0, ""))
    seen = []
    keep(data / "bench-growth.json")
    steps = record.plan([Recipe("bench-growth.json", "bench growth", "emulated")], data)
    assert [name for name, _ in record.follow(steps, data)] == ["bench-growth.json", "figures"]
    assert seen[:2] == ["report", str(data / "bench-growth.json")]


def test_figures_are_made_of_what_was_made_on_cuda(data, takes, monkeypatch):
    takes()
    monkeypatch.setattr(record, "_run", lambda words, folder: seen.extend(words) or (0, ""))
    seen = []
    keep(data / "results" / "case" / "cuda-nvidia-x.json")
    steps = record.plan([STALE, Recipe("results/case/cuda-*.json", "on cuda", "emulated")], data)
    assert [name for name, _ in record.follow(steps, data)][-1] == "figures"
    assert seen[:2] == ["report", str(data / "results" / "case" / "cuda-nvidia-x.json")]
    assert seen[-2:] == ["--figures", str(data / "figures")]
    steps.append(steps.pop(0))  # whichever comes last
    assert [name for name, _ in record.follow(steps, data)][-1] == "figures"


# ---- one case alone ----


def cells(case, subject):
    fields = {"variant": "v", "role": "fixed", "expected_kind": None, "expected_subject": None, "where": None}
    counts = {"num_seeds": 20, "found": {}, "missed": 0, "false_alarms": 0}
    return [matrix.Cell(case=case, subject=subject, **fields, **counts)]


def kept_matrix(path, **subjects):
    """Rows of these cases, made by the code as it is."""
    made_by = {file: h for case in subjects for file, h in sources.of_audit(case, "emulated").items()}
    made = provenance(0, uses_gpu=False, made_by=made_by)
    rows = [cell for case, subject in subjects.items() for cell in cells(case, subject)]
    matrix.Matrix(provenance=made, rung="emulated", cells=rows).save(path)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A matrix of three cases, then one of `stale_view` alone, as its recipe would have made it."""
    target = tmp_path / "audit.json"
    kept_matrix(target, lora_short_circuit="old", flashmla_lazy_init="old", stale_view="old")
    before = matrix.load(target)

    def run(words, folder, limit_s):
        assert words[:2] == ["audit", "matrix"] and "stale_view" in words
        kept_matrix(Path(words[-1]), stale_view="new")
        return 0, ""

    monkeypatch.setattr(record, "_run", run)
    return target, before


def recipe_of(case):
    [recipe] = [recipe for recipe in record.of_case(case) if recipe.file == "audit.json"]
    return recipe


def test_rows_of_one_case_go_among_the_others_with_a_provenance_of_their_own(rows, tmp_path):
    target, before = rows
    assert record.make(recipe_of("stale_view"), tmp_path).told == "made"
    merged = matrix.load(target)
    seen = [(cell.case, cell.subject) for cell in merged.cells]
    assert seen == [("lora_short_circuit", "old"), ("flashmla_lazy_init", "old"), ("stale_view", "new")]
    assert merged.made.keys() == {"stale_view"} and merged.made["stale_view"].seconds > 0
    # Of the others nothing is claimed anew, and what only the replaced rows were made by is no longer theirs.
    gone = {"cases/stale_view.py"}
    assert merged.provenance.sources == {
        file: known for file, known in before.provenance.sources.items() if file not in gone
    }
    assert merged.provenance.model_dump(exclude={"sources"}) == before.provenance.model_dump(
        exclude={"sources"}
    )
    assert "- stale_view: recorded: CPU, torch" in repr(matrix.DetectionTable(merged, recorded=True))


def test_rows_are_as_old_as_their_own_code(rows, tmp_path):
    """Those of a case in which something changed, and of no other; a file is as old as any of its rows."""
    target, _ = rows
    record.make(recipe_of("stale_view"), tmp_path)
    kept = json.loads(target.read_text())
    kept["made"]["stale_view"]["sources"] |= GONE
    target.write_text(json.dumps(kept))
    assert record.since(target, "stale_view") == "the code has changed since: runner"
    assert record.since(target, "lora_short_circuit") == ""
    assert record.since(target) == "the code has changed since: runner"
    assert record.since(target, "breakable_graph") == "not there, or cannot be read"
    [step] = record.plan([recipe_of("breakable_graph")], tmp_path)
    assert (step.since, step.seconds) == ("not there, or cannot be read", record.GUESS_S)


def test_a_file_that_is_not_there_begins_with_the_rows_of_one_case(rows, tmp_path):
    record.make(recipe_of("stale_view"), tmp_path / "new")
    assert [cell.case for cell in matrix.load(tmp_path / "new" / "audit.json").cells] == ["stale_view"]


def test_a_full_disk_leaves_the_record_that_was_there(program, tmp_path, monkeypatch):
    (tmp_path / "made.json").write_text("old")
    monkeypatch.setattr(results.Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        made(tmp_path, "well")
    assert (tmp_path / "made.json").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"made.json", ".lock"}


def test_rows_of_two_cases_that_are_made_at_once_are_both_kept(rows, tmp_path, monkeypatch):
    """The second one comes while the first one has read the file and not yet written it."""
    target, _ = rows
    loaded, load, begun = [], matrix.load, threading.Event()

    def second():
        with held(tmp_path / ".lock", 60):
            begun.set()
            loaded.append(load(target))

    def load_slowly(path):
        kept = load(path)
        if path == target:
            other.start()
            assert not begun.wait(0.2)  # it has to wait for the lock
        return kept

    other = threading.Thread(target=second)
    monkeypatch.setattr(matrix, "load", load_slowly)
    record.make(recipe_of("stale_view"), tmp_path)
    other.join()
    assert "new" in {cell.subject for cell in loaded[0].cells}


# ---- the recipes of this repository ----


OF_CASES = [recipe for name in CASES for recipe in record.of_case(name) if recipe.case]


@pytest.mark.parametrize(
    "recipe", [*RECIPES, *OF_CASES], ids=lambda recipe: f"{recipe.file} {recipe.case}".strip()
)
def test_every_recipe_is_a_command_that_there_is(recipe, tmp_path):
    name, *options = recipe.words(tmp_path)
    command, case = typer.main.get_command(app).commands[name], recipe.case or None
    if name in ("audit", "bench"):
        name = options.pop(0)
        command = command.commands[name]
    given = command.make_context(name, options).params
    assert case is None or given["case"] == case
    assert given["save"] and str(tmp_path) in str(given.get("data") or given["save"])
    by_name = {
        "live": "vllm",
        "vllm": "vllm",
        "history": "source",
        "floor": "cuda",
        "sweep": "emulated",
        "engine": "vllm",
        "server": "vllm",
        "stages": "vllm",
    }.get(name)
    assert recipe.rung in (given.get("rung"), given.get("backend"), by_name)


def test_of_one_case_is_made_what_needs_no_other():
    assert {recipe.file for recipe in record.of_case("lora_short_circuit")} == {
        "results/lora_short_circuit/vllm-[!0-9]*.json",
        *(f"results/lora_short_circuit/vllm-{release}-*.json" for release in record.ENGINES[1:]),
        *("results/lora_short_circuit/cuda-*.json", "results/lora_short_circuit/source-cpu.json"),
        *("audit.json", "audit-cuda.json"),
    }


def test_every_record_has_one_recipe():
    kept = {path for path in RECORDS.rglob("*.json") if "provenance" in json.loads(path.read_text())}
    by_make = ("faults", "fuzz", "soak", "hunt")  # and by `mrv2lab hunt`, which takes a folder
    kept -= {path for kind in by_make for path in RECORDS.glob(f"{kind}-*.json")}
    made = [path for recipe in RECIPES for path in recipe.kept(RECORDS)]
    assert kept == set(made) and len(made) == len(kept)


# ---- the commands ----


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_the_plan_is_printed_and_nothing_is_made(data, monkeypatch):
    monkeypatch.setattr(record, "RECIPES", tuple(ALL))
    monkeypatch.setattr(record, "make", None)
    told = invoke("record", "--plan", "--budget", "30s", "--only", "stale", "--data", data)
    assert told.exit_code == 0
    *lines, total = told.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["make", "no", "no"]
    assert re.fullmatch(r"1 record to make here, about \d+ minutes", total)
    none = invoke("record", "--plan", "--rung", "vllm", "--data", data / "new").stdout
    assert none == f"0 records to make here, about 0 minutes; {data / 'new'} is not there yet\n"


def test_the_plan_of_one_case(data):
    told = invoke("record", "stale_view", "--plan", "--rung", "emulated", "--data", data).stdout
    line = told.splitlines()[0]
    assert line.split(maxsplit=3) == ["make", "120", "s", "audit.json: not there, or cannot be read"]


@pytest.mark.parametrize(("how", "status"), [("well", 0), ("differs", 1), ("crashes", 1)])
def test_the_exit_status_says_whether_all_was_made_as_stated(data, program, monkeypatch, how, status):
    monkeypatch.setattr(record, "RECIPES", (replace(NEW, command=how), replace(STALE, command="well")))
    told = invoke("record", "--data", data)
    assert told.exit_code == status
    assert [line.split(":")[0] for line in told.stdout.splitlines()] == ["new.json", "stale.json"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["lora"], "unknown case 'lora'; possible: "),
        (["--rung", "gpu"], "unknown --rung 'gpu'; possible: emulated, cuda, source, vllm"),
        (["--only", "old"], "unknown --only 'old'; possible: all, stale"),
        (["--plan", "--budget", ""], "--budget : possible: a number and s, m or h"),
        (["--budget", "soon"], "--budget soon: possible: a number and s, m or h"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, message):
    told = invoke("record", *args)
    assert (
        told.exit_code == 2 and told.stderr.startswith(f"mrv2lab: {message}") and told.stderr.count("\n") == 1
    )


def test_a_real_recipe_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("MRV2LAB_COMMIT", "c" * 40)
    run = "run breakable_graph --rung emulated --variant whole_graph --batch-size 1 --set num_layers=1"
    ended = record.make(Recipe("results/breakable_graph/emulated-*.json", run, "emulated"), tmp_path)
    assert ended.told == "made: 1 wrong"
    path = tmp_path / "results" / "breakable_graph" / "emulated-cpu.json"
    [kept] = provenance_of(path)
    assert kept == load(path).provenance and kept.commit == "c" * 40 and kept.seconds > 0
    assert kept.command == f"mrv2lab {run} --save --data results"
    assert kept.sources == sources.of_run("breakable_graph", "emulated") and kept.since == ""
