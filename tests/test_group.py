"""What a group's members hand out, and what whoever leads it is shown; mysteries as hard as each other."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mrv2lab import group, journal, progress
from mrv2lab.cases import get
from mrv2lab.cli import app
from mrv2lab.errors import BadInput
from mrv2lab.mystery import Mystery, survey
from mrv2lab.mystery.mystery import EXAMPLE, faults_of
from mrv2lab.widgets import AnswerPanel, HintLadder

BEGUN = datetime(2026, 1, 31, 9, tzinfo=UTC)


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture
def clock(monkeypatch):
    """Minutes that have passed, to be set."""

    class Clock(datetime):
        minutes = 0

        @classmethod
        def now(cls, tz=None):
            return BEGUN + timedelta(minutes=cls.minutes)

    monkeypatch.setattr(journal, "datetime", Clock)
    return Clock


def exported():
    return [json.loads(line) for line in invoke("progress", "--export").stdout.splitlines()]


# ---- what a member hands out ----


def test_a_line_for_each_solved_item_and_no_name_path_or_day(clock):
    journal.note("begun", "breakable_graph")
    journal.note("begun", "mystery 7")
    journal.note("hints", "breakable_graph", 1)
    journal.note("hints", "stale_view", 1)
    clock.minutes = 12.04
    journal.note("begun", "breakable_graph")
    journal.note("solved", "breakable_graph")
    journal.note("solved", "lora_short_circuit")
    journal.note("puzzles", "lent_output")
    journal.note("mysteries", 7, journal.Score(points=3, of=4))
    journal.note("mysteries", 8, journal.Score(points=3, of=4))
    clock.minutes = 20
    journal.note("solved", "breakable_graph")
    journal.note("mysteries", 7, journal.Score(points=4, of=4))
    common = {"guesses": {}, "seed": None}
    assert sorted(exported(), key=str) == sorted(
        [
            {"item": "lora_short_circuit", "minutes": None, "hints": 0} | common,
            {"item": "lent_output", "minutes": None, "hints": 0} | common,
            {"item": "breakable_graph", "minutes": 12.0, "hints": 1} | common,
            {"item": "mystery", "minutes": 20.0, "hints": 0} | common | {"seed": 7},
        ],
        key=str,
    )
    assert "2026" not in invoke("progress", "--export").stdout


def test_guesses_are_handed_out_as_they_are_kept():
    journal.file().parent.mkdir()
    journal.file().write_text('{"guesses": {"branch": "c", "first-row": "a"}}')
    (line,) = exported()
    assert (line["item"], line["guesses"]) == ("guesses", {"branch": "c", "first-row": "a"})


def test_who_has_solved_nothing_hands_out_nothing():
    journal.note("hints", "stale_view", 1)
    assert exported() == []


@pytest.mark.parametrize("somebody", [None, "a shell"], ids=["nobody", "somebody"])
def test_an_item_begins_when_somebody_has_it_in_front_of_them(monkeypatch, somebody):
    monkeypatch.setattr(progress, "watched", lambda: somebody)
    for shown in (
        HintLadder(get("stale_view")),
        AnswerPanel(Mystery(7, "emulated")),
        AnswerPanel(Mystery(EXAMPLE, "emulated")),
    ):
        shown._repr_mimebundle_()
    assert sorted(journal.load().begun) == (["mystery 7", "stale_view"] if somebody else [])


def test_a_mystery_begins_in_a_terminal_too_and_not_for_who_leads():
    invoke("mystery", 7, "--rung", "emulated", "--solution")
    assert journal.load().begun == {}
    assert invoke("mystery", 7, "--rung", "emulated").exit_code == 0
    assert list(journal.load().begun) == ["mystery 7"]


# ---- what the others are shown ----


def line(item, minutes=None, hints=0, seed=None, guesses=None):
    told = {"item": item, "seed": seed, "minutes": minutes, "hints": hints, "guesses": guesses or {}}
    return json.dumps(told) + "\n"


@pytest.fixture
def exports(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "_RIGHT", {"branch": "c", "first-row": "a"})
    a, b, c = (tmp_path / f"{name}.jsonl" for name in "abc")
    guesses = line("guesses", guesses={"branch": "c", "first-row": "b", "of a later version": "a"})
    a.write_text(line("stale_view", 10, 2) + line("mystery", 30, seed=1) + guesses)
    b.write_text("\ufeff" + line("mystery", 8, seed=59) + line("stale_view", 4) + line("stale_view", 20, 1))
    c.write_text(line("lora_short_circuit", 7) + "\n" + line("stale_view"))
    return [a, b, c]


def cells(result):
    return [line.split() for line in result.stdout.splitlines()]


def test_a_row_for_each_item_and_for_each_member(exports):
    members, broken = group.read(exports)
    assert broken == []
    a, b, c = map(str, exports)
    assert group.rows(members)[1:] == [
        ["guesses", "-", "-", "0", "1 of 2"],
        ["mystery 1", "by 1 of 3", "30", "0", "-"],
        ["mystery 59", "by 1 of 3", "8", "0", "-"],
        ["stale_view", "by 3 of 3", "15", "3", "-"],
        ["lora_short_circuit", "by 1 of 3", "7", "0", "-"],
        [a, "2", "20", "2", "1 of 2"],
        [b, "2", "14", "1", "-"],
        [c, "2", "7", "0", "-"],
    ]


def test_broken_lines_and_files_are_named_and_stop_nothing(exports, tmp_path):
    broken = ['{"item": ', "[1]", line("[red]a"), line("a", -1), line("a", float("nan")), "\x00"]
    exports[1].write_text(
        line("stale_view", 3) + "\n" + "\n".join(text.strip("\n") for text in broken) + "\n"
    )
    result = invoke("class", *exports, tmp_path / "none.jsonl", tmp_path)
    assert result.exit_code == 0 and ["stale_view", "by", "3", "of", "3"] in [
        row[:5] for row in cells(result)
    ]
    told = result.stderr.splitlines()
    assert [text.split(": ")[1] for text in told] == [
        *(f"{exports[1]}:{number}" for number in range(3, 9)), str(tmp_path / "none.jsonl"), str(tmp_path)
    ]  # fmt: skip


def test_what_members_write_is_what_the_leader_reads(tmp_path):
    journal.note("begun", "stale_view")
    journal.note("solved", "stale_view")
    (tmp_path / "a.jsonl").write_text(invoke("progress", "--export").stdout)
    assert ["stale_view", "by", "1", "of", "1", "0", "0", "-"] in cells(invoke("class", tmp_path / "a.jsonl"))


def test_without_a_file_that_can_be_read_it_is_bad_input(tmp_path):
    result = invoke("class", tmp_path / "none.jsonl")
    assert result.exit_code == 2 and "mrv2lab progress --export" in result.stderr


# ---- before and after ----


def shown_pair():
    return [int(seed) for seed in re.findall(r"mrv2lab mystery (\d+)", invoke("mystery", "--pair").stdout)]


def test_the_pair_is_as_hard_as_far_as_the_survey_knows_and_has_other_faults():
    by_seed = {seen.seed: seen for seen in survey.load().seeds}
    before, after = (by_seed[seed] for seed in shown_pair())
    assert before.verdict == after.verdict and [*before.human.values()] == [*after.human.values()]
    named = [[re.sub(": .*,", "", found) for found in seen.found.values()] for seen in (before, after)]
    assert named[0] == named[1] and all(re.fullmatch(r"[a-z-]+ step \d+", one) for one in named[0])
    (a,), (b,), (played,) = (faults_of(seed) for seed in (before.seed, after.seed, EXAMPLE))
    assert len({a.place, b.place, played.place}) == 3 and a.kinds == b.kinds


def seen(seed, *faults, kind="a", step=1, verdict="wrong", **human):
    found = {} if human else {fault: f"{kind}: x, step {step}" for fault in faults}
    return survey.Surveyed(seed=seed, faults=list(faults), verdict=verdict, found=found, human=human)


def test_no_pair_where_something_differs():
    known, one = seen(12, "played"), seen(0, "A")
    assert group.pair([known, one, seen(1, "B")], 12) == (0, 1)
    others = [
        seen(1, "A"), seen(1, "B", kind="b"), seen(1, "B", step=4), seen(1, "B", "C"), seen(1, "played"),
        seen(1, "B", verdict="crash"), seen(1, "B", B="late"),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(BadInput, match="no two mysteries"):
            group.pair([known, one, other], 12)


def test_the_guide_names_the_pair_that_the_command_names():
    from links import NOTEBOOKS

    before, after = shown_pair()
    assert f"mysteries {before} and {after}" in (NOTEBOOKS / "onboarding.md").read_text()


def test_the_median_is_of_three_and_one_file_is_one_member(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, minutes in (("a", 1), ("b", 2), ("c", 30)):
        (tmp_path / f"{name}.jsonl").write_text(line("stale_view", minutes))
    names = [tmp_path / "a.jsonl", Path("a.jsonl"), Path("b.jsonl"), Path("c.jsonl")]
    members, broken = group.read(names)
    assert len(members) == 3 and broken == []
    assert group.rows(members)[1] == ["stale_view", "by 3 of 3", "2", "0", "-"]


def test_an_item_is_one_of_ours_and_a_file_that_is_no_export_is_told_in_a_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(line("Somebodys_name") + "\n" + line("stale_view", hints=1))
    (tmp_path / "b\x1b[31m.py").write_text("import os\n" * 9)
    members, broken = group.read(sorted(tmp_path.iterdir()))
    assert [list(lines) for lines in members.values()] == [["stale_view"]]
    assert len(broken) == 2 and "no case, puzzle" in broken[0] and broken[1].endswith("progress --export`")
    assert "\x1b" not in "".join(broken)


def test_numbers_that_nobody_reaches_are_left_out(tmp_path):
    huge = line("stale_view", hints=10**4298)
    (tmp_path / "a.jsonl").write_text("\n".join([huge] * 9 + [line("stale_view", hints=3)]))
    members, broken = group.read([tmp_path / "a.jsonl"])
    assert len(broken) == 9 and group.rows(members)[1][3] == "3"


def test_a_name_of_the_journals_is_not_handed_out():
    journal.file().parent.mkdir(parents=True, exist_ok=True)
    journal.file().write_text('{"solved": {"Somebodys name": "2026-01-01", "stale_view": "2026-01-01"}}')
    assert [line["item"] for line in exported()] == ["stale_view"]


def test_a_clock_that_was_set_back_tells_no_minutes(clock):
    journal.note("begun", "stale_view")
    clock.minutes = -5
    journal.note("solved", "stale_view")
    assert [line["minutes"] for line in exported()] == [None]
