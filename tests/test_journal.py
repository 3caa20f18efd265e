"""Progress is kept, on this machine, in one file; and nothing breaks where it cannot be."""

import json
import multiprocessing
import os
import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace

import links
import pytest
from typer.testing import CliRunner

from mrv2lab import journal
from mrv2lab.cases import get
from mrv2lab.cli import app
from mrv2lab.mystery import PLACES, Mystery
from mrv2lab.mystery.mystery import EXAMPLE, level
from mrv2lab.widgets import HintLadder, ProgressPanel

SMALL = {"batch_size": 1}


def own_repair(adapter_manager, input_batch):
    """Written here, as a reader would: not a function of the package."""
    from mrv2lab.cases.lora_device_assert import zero_mapping

    zero_mapping(adapter_manager, input_batch)


def no_repair(adapter_manager, input_batch):
    pass


# ---- what is noted ----


def test_a_solved_exercise_is_noted_and_an_unsolved_one_is_not():
    case = get("lora_device_assert")
    assert not case.check(no_repair, **SMALL).solved and journal.load().solved == {}
    assert case.check(own_repair, **SMALL).solved
    assert list(journal.load().solved) == ["lora_device_assert"]


def test_the_upstream_solution_solves_it_for_nobody():
    case = get("lora_device_assert")
    assert case.check(case.variant("zero_mapping").fn, **SMALL).solved
    assert journal.load().solved == {}


def test_the_first_day_counts(monkeypatch):
    journal.file().parent.mkdir()
    journal.file().write_text('{"solved": {"breakable_graph": "2026-01-31"}}')
    journal.note("solved", "breakable_graph")
    assert str(journal.load().solved["breakable_graph"]) == "2026-01-31"


def test_hints_are_noted_when_they_are_opened_and_not_when_they_are_shown():
    ladder = HintLadder(get("breakable_graph"))
    ladder._repr_mimebundle_()
    assert journal.load().hints == {}
    ladder.buttons[0].click()
    ladder.buttons[1].click()
    ladder.buttons[0].click()
    assert journal.load().hints == {"breakable_graph": [1, 2]}


def test_the_first_guess_the_last_answer_and_the_best_score_count():
    journal.note("quiz", "slot", True)
    journal.note("quiz", "slot", False)
    journal.note("mysteries", 7, journal.Score(points=2, of=3))
    journal.note("mysteries", 7, journal.Score(points=1, of=3))
    journal.note("guesses", "branch", "c")
    journal.note("guesses", "branch", "a")
    kept = journal.load()
    assert kept.guesses == {"branch": "c"}
    assert kept.quiz == {"slot": False} and kept.mysteries[7] == journal.Score(points=2, of=3)


# ---- the file ----


def test_it_is_kept_in_the_users_folder_unless_a_variable_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.setenv("MRV2LAB_PROGRESS", str(tmp_path / "own.json"))
    assert journal.file() == tmp_path / "own.json"
    monkeypatch.delenv("MRV2LAB_PROGRESS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert journal.file().name == "progress.json" and journal.file().parent.name == "mrv2lab"
    assert not journal.file().is_relative_to(os.getcwd())


def test_what_pytest_runs_has_a_file_of_its_own(monkeypatch):
    monkeypatch.delenv("MRV2LAB_PROGRESS")
    runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))  # pytest does so for notebooks as well
    assert journal.file().is_relative_to(tempfile.gettempdir())


def test_a_damaged_file_is_kept_aside_and_said():
    journal.file().parent.mkdir()
    journal.file().write_text('{"solved": ')
    journal.note("hints", "breakable_graph", 1)
    journal.file().write_text('{"another": "program"}')
    assert journal.load() == journal.Progress()
    first, second = journal.set_aside()
    assert first.read_text() == '{"solved": ' and second.read_text() == '{"another": "program"}'
    assert "set aside" in journal.remarks()[1] and str(second) in journal.remarks()[2]


def test_the_file_is_whole_or_as_it_was(monkeypatch):
    journal.note("quiz", "slot", True)
    before = journal.file().read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.warns(UserWarning, match="cannot be kept: .*No space left on device"):
        journal.note("quiz", "flag", True)
    assert journal.file().read_text() == before and json.loads(before)["quiz"] == {"slot": True}


@pytest.mark.parametrize("held, fails", [('{"quiz": {"slot": true}}', "read_bytes"), ("{", "replace")])
def test_what_cannot_be_read_or_set_aside_is_not_written_over(monkeypatch, held, fails):
    journal.file().parent.mkdir(parents=True, exist_ok=True)
    journal.file().write_text(held)

    does = getattr(Path, fails)

    def fail(path, *to):
        if to and "damaged" not in str(to):  # what is written, and not what is set aside
            return does(path, *to)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="cannot be kept"):
        patch.setattr(f"pathlib.Path.{fails}", fail)
        journal.note("quiz", "flag", True)
    assert journal.file().read_text() == held


@pytest.mark.parametrize("place", ["below a file", "a folder"])
def test_an_exercise_does_not_need_a_place_to_write(monkeypatch, tmp_path, place):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "progress.json" if place == "below a file" else tmp_path
    monkeypatch.setenv("MRV2LAB_PROGRESS", str(path))
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert get("lora_device_assert").check(own_repair, **SMALL).solved
    assert journal.load() == journal.Progress() and not journal.can_be_kept()
    assert "cannot be kept" in journal.remarks()[0]


def test_nor_a_home_that_can_be_written(monkeypatch):
    def read_only(*_, **__):
        raise PermissionError(13, "Permission denied")

    for write in ("mkdir", "write_text"):
        monkeypatch.setattr(f"pathlib.Path.{write}", read_only)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert get("lora_device_assert").check(own_repair, **SMALL).solved
    assert journal.load() == journal.Progress() and not journal.can_be_kept()


# ---- to look at ----


def invoke(*args):
    return CliRunner().invoke(app, ["progress", *args])


def test_the_command_shows_and_forgets():
    journal.note("solved", "breakable_graph")
    journal.note("hints", "breakable_graph", 1)
    journal.note("quiz", "slot", True)
    journal.note("guesses", "branch", "c")
    journal.note("mysteries", 7, journal.Score(points=2, of=3))
    journal.note("puzzles", "counter")
    shown = invoke()
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert shown.exit_code == 0 and str(journal.file()) in shown.stdout
    assert next(line for line in lines if "breakable_graph" in line)[2] == "solved"
    assert ["guesses", "1", "made", "-"] in lines
    assert ["puzzles", "1", "of", "10"] in [line[:4] for line in lines]
    assert ["quiz", "1", "of"] in [line[:3] for line in lines]
    assert f"mystery 7, level {level(7)} of 3 2 of 3 -".split() in lines
    forgotten = invoke("--forget")
    assert forgotten.stdout == f"deleted {journal.file()}\n" and not journal.file().exists()
    assert invoke("--forget").stdout == "nothing was kept\n"


def test_a_file_that_cannot_be_deleted_is_bad_input(monkeypatch, tmp_path):
    monkeypatch.setenv("MRV2LAB_PROGRESS", str(tmp_path))
    result = invoke("--forget")
    assert result.exit_code == 2 and "cannot delete" in result.stderr


def test_the_panel_shows_it_and_an_exported_page_does_not():
    panel = ProgressPanel()
    assert repr(panel) == "ProgressPanel()" and "solved 2" not in panel.state.value
    journal.note("solved", "breakable_graph")
    panel.again.click()
    assert "solved 2" in panel.state.value
    assert "breakable_graph" not in panel._repr_mimebundle_()["text/html"]


def test_names_of_a_reader_are_not_taken_for_ours():
    from mrv2lab.cases.base import _is_ours

    assert not _is_ours(own_repair) and _is_ours(get("breakable_graph").variant("breakable").fn)
    assert not _is_ours(SimpleNamespace(__module__=None))


def test_what_the_page_itself_solves_is_not_noted():
    Mystery(EXAMPLE, "emulated").answer("diverged", PLACES[1], "x")
    assert journal.load().mysteries == {}
    assert f"mystery = Mystery({EXAMPLE})" in (links.NOTEBOOKS / "40_mystery.ipynb").read_text()


def test_the_best_answer_to_a_mystery_is_noted():
    mystery = Mystery(0, "emulated")
    worth = [
        mystery.answer("host-sync", PLACES[0], "nothing").points,
        mystery.answer("diverged", PLACES[1], "x").points,
    ]
    assert journal.load().mysteries[0].points == max(worth)


def test_two_notebooks_may_note_at_once():
    forks = multiprocessing.get_context("fork")

    def note(case):
        for number in range(30):
            journal.note("hints", case, number)

    both = [forks.Process(target=note, args=(case,)) for case in ("a", "b")]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert journal.load().hints == {"a": [*range(30)], "b": [*range(30)]}


def test_what_is_set_aside_is_never_written_over():
    journal.file().parent.mkdir(parents=True, exist_ok=True)
    for text in ("first", "second"):
        journal.file().write_text(text)
        journal.load()
    first, second = journal.set_aside()
    first.unlink()
    journal.file().write_text("third")
    journal.load()
    assert {path.read_text() for path in journal.set_aside()} == {"second", "third"} and second.exists()


@pytest.mark.parametrize(
    "odd", ['{"begun": {"x": "2026-01-01T00:00:00"}}', '{"mysteries": {"1": {"points": NaN, "of": 1}}}']
)
def test_what_cannot_be_counted_with_is_set_aside(odd):
    journal.file().parent.mkdir(parents=True, exist_ok=True)
    journal.file().write_text(odd)
    assert journal.load() == journal.Progress() and len(journal.set_aside()) == 1


def test_a_home_that_nobody_has_is_a_folder_of_that_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MRV2LAB_PROGRESS", "~nobody_is_here/x.json")
    assert journal.file() == tmp_path / "~nobody_is_here" / "x.json"
