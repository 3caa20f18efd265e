"""The game: the same seed is the same mystery, right answers are full, wrong ones are told why."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import links
import pytest
from typer.testing import CliRunner

from mrv2lab.cli import app
from mrv2lab.errors import BadInput, RecordError
from mrv2lab.mystery import GUESSED_KINDS, PLACES, Mystery, SurveyTable, runs, survey
from mrv2lab.mystery.answer import Guess, Story, _identifiers, marked
from mrv2lab.mystery.faults import COMBINATIONS, FAULTS, PAIRS
from mrv2lab.mystery.mystery import faults_of, level

BY_PART = {fault.part.__name__: fault for fault in FAULTS}
FEW = (1, 93)  # one fault; two that need an audit each


def guess_of(fault, cause=None):
    return Guess(fault.kinds[0], fault.place, cause or fault.causes[0])


def answered(faults, *named):
    return marked([guess_of(fault) for fault in named], tuple(faults), "emulated")


def seed_of(*parts):
    """The first seed with these faults."""
    wanted = tuple(BY_PART[part] for part in parts)
    return next(seed for seed in range(1000) if faults_of(seed) == wanted)


# ---- seeds ----


def test_levels_are_stated_from_what_the_survey_knows_and_told_on_the_page_and_in_a_terminal():
    surveyed = {seen.seed: seen for seen in survey.load().seeds}
    levels = {seed: len(seen.faults) + bool(seen.human) for seed, seen in surveyed.items()}
    assert {seed: level(seed) for seed in levels} == levels and set(levels.values()) == {1, 2, 3}
    page = "\n".join(links.read(links.NOTEBOOKS / "40_mystery.ipynb"))
    told = re.findall(r"^\| ([123]) \| ([\d, ]+) \|$", page, re.MULTILINE)
    assert {int(seed): int(n) for n, seeds in told for seed in seeds.split(", ")} == {
        seed: levels[seed] for seed in range(30)
    }
    shown = CliRunner().invoke(app, ["mystery", "2", "--rung", "emulated"]).stdout
    assert f"level: {levels[2]} of 3" in shown


def test_a_seed_is_the_same_mystery_everywhere():
    pinned = {
        0: ["context_by_first", "set_lora_aside"],
        1: ["add_lora_active"],
        7: ["dispatch_uniform"],
        12: ["write_positions_in_turn"],
        10**12: ["context_to_longest"],
        2026: ["write_seq_lens_early"],
    }
    for seed, parts in pinned.items():
        assert [fault.part.__name__ for fault in faults_of(seed)] == parts


def test_a_seed_does_not_hang_on_how_python_hashes():
    script = "from mrv2lab.mystery.mystery import faults_of; print([f.name for f in faults_of(2026)])"
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str([fault.name for fault in faults_of(2026)])


def test_seeds_draw_from_all_that_there_is():
    assert {faults_of(seed) for seed in range(1000)} == set(COMBINATIONS)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True, None])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(BadInput, match="possible: whole numbers from 0 on"):
        Mystery(seed)


# ---- looking at it ----


def test_nothing_gives_it_away_before_it_is_solved():
    mystery = Mystery(seed_of("write_slots_of_tokens"))
    public = {name: getattr(mystery, name) for name in dir(mystery) if not name.startswith("_")}
    shown = [repr(mystery), repr(mystery.story()), repr(mystery.steps()), str(mystery.audit())]
    shown += [repr(value) for value in public.values() if not callable(value)]
    shown += [run.model_dump_json(exclude={"message", "where"}) for run in mystery.runs()]
    for text in shown:
        assert not any(fault.part.__name__ in text or fault.name in text for fault in FAULTS)
    assert {name for name in public if not callable(public[name])} == {"seed", "rung"}


def test_steps_tell_what_ran_and_what_went_wrong():
    rows = Mystery(seed_of("context_with_decode")).steps().rows()
    assert rows[0] == ["step", "requests", "tokens", "ran as", "error"]
    assert rows[1][1:] == ["4", "33", "eager", "≤ 0.001"]
    assert rows[7][1:] == ["4", "8", "graph", "> 0.1"]
    assert Mystery(seed_of("context_to_longest")).steps().rows()[1][3:] == ["none", "none"]


def test_what_is_overwritten_later_was_right_when_the_step_ended():
    mystery = Mystery(seed_of("compute_logits_in_pool"))
    of_four = [row[4] for row in mystery.steps().rows() if row[1] == "4"]
    assert set(of_four[:-1]) == {"> 0.1"}  # whether the last of them survives is up to the pool
    assert {row[4] for row in mystery.steps(at_once=True).rows()[1:]} == {"≤ 0.001"}


def buffers(part, step):
    return {name: (a, b) for name, a, b in Mystery(seed_of(part)).buffers(step).lines[1:]}


def test_buffers_show_inputs_that_are_late_and_padding_that_is_not():
    right, late = buffers("context_with_decode", 4), buffers("write_seq_lens_early", 4)
    assert right["asked: lengths"][0] == right["seq_lens"][0] != late["seq_lens"][0]
    assert late["asked: lengths"] == right["asked: lengths"]
    assert right["slot_mapping"][1] == "-1" != buffers("write_slots_of_tokens", 4)["slot_mapping"][1]
    assert buffers("context_to_longest", 4)["seq_lens"] == (right["seq_lens"][0], "")  # it captures nothing


def test_the_runner_is_there_to_be_taken_apart():
    mystery = Mystery(seed_of("add_lora_active"))
    runner = mystery.runner()
    assert runner.cudagraph_manager.graphs and runner is not mystery.runner()


@pytest.mark.parametrize("look", ["audit", "buffers"])
def test_there_is_no_such_step(look):
    with pytest.raises(BadInput, match="step 99; possible: 0 to 13"):
        getattr(Mystery(0), look)(99)


def test_a_step_that_fits_no_graph_is_not_audited():
    with pytest.raises(BadInput, match=r"step 9 has 18 tokens and fits no graph.* possible: 1, 2, .*, 13"):
        Mystery(0).audit(9)


# ---- answers ----


def test_no_two_faults_look_alike():
    for a, b in itertools.combinations(FAULTS, 2):
        shared = set(a.kinds) & set(b.kinds) and a.place == b.place and set(a.causes) & set(b.causes)
        assert not shared, f"{a.name} and {b.name} could not be told apart"


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "+".join(f.part.__name__ for f in pair))
def test_a_pair_is_solved_by_naming_both(pair):
    assert answered(pair, *pair).is_solved and answered(pair, *reversed(pair)).is_solved
    for one in pair:
        answer = answered(pair, one)
        assert (answer.points, answer.most_points) == (3, 7) and not answer.is_solved
        assert any(remark.endswith("there is more.") for remark in answer.remarks)


def test_two_answers_to_one_fault_are_one_too_many():
    one, other = BY_PART["set_lora_aside"], BY_PART["extend_anew"]
    answer = answered([one], other, one)
    assert [sum(marks) for marks in answer.marks] == [0, 3] and not answer.is_solved
    assert answer.remarks[-1].endswith("there is less.")


AGAINST = [
    ("set_lora_aside", "silent-eager", "every step that fits a graph replayed one"),
    ("set_lora_aside", "host-sync", "capture went through"),
    ("set_lora_aside", "audit-silent", "the audit of step 1 is not"),
    ("set_lora_aside", "unwritten-read", "no audit of step 1 or 6"),
    ("write_kv_if_kept", "lost-kernel", "an audit reports it, as a consequence"),
    ("context_to_longest", "moved-address", "capture is refused"),
]


@pytest.mark.parametrize(("part", "kind", "told"), AGAINST)
def test_what_speaks_against_a_kind(part, kind, told):
    fault = BY_PART[part]
    answer = marked([Guess(kind, fault.place, fault.causes[0])], (fault,), "emulated")
    assert answer.marks == ((False, True, True),)
    assert len(answer.remarks) == 1 and answer.remarks[0].startswith(f"{kind}: {told}")


def test_what_speaks_against_a_place_and_a_cause():
    fault = BY_PART["write_positions_in_turn"]
    place = marked([Guess("moved-address", "rotary_embedding.extend", "positions")], (fault,), "emulated")
    assert place.marks == ((True, False, True),)
    assert place.remarks[0].endswith("every step shows what it showed before.")
    cause = marked([Guess("moved-address", fault.place, "spare")], (fault,), "emulated")
    assert cause.marks == ((True, True, False),) and "'spare' is not what" in cause.remarks[0]
    for answer in (place, cause):  # what speaks against it does not say what is right
        assert not any(fault.place in r for r in place.remarks)
        assert not any(fault.name in remark or "positions" in remark for remark in answer.remarks[1:])


def test_something_is_wrong_there_but_it_is_not_this():
    pair = PAIRS[0]
    crossed = [Guess(pair[0].kinds[0], pair[1].place, "x"), Guess("diverged", pair[1].place, "y")]
    answer = marked(crossed, pair, "emulated")
    assert any("something is wrong there" in remark for remark in answer.remarks)


def test_an_answer_is_a_table():
    answer = answered([BY_PART["extend_anew"]], BY_PART["extend_anew"])
    assert repr(answer).splitlines() == [
        "          kind           place                    cause",
        "you said  moved-address  rotary_embedding.extend  cos_sin_cache",
        "          right          right                    right",
        "number of faults: right; 4 of 4 points: solved",
    ]
    assert "<td" in answer._repr_html_()


def test_the_story_is_closed_until_it_is_solved_or_given_up():
    fault = BY_PART["write_positions_in_turn"]
    mystery = Mystery(seed_of("write_positions_in_turn"))
    assert repr(mystery.story()).startswith("not solved yet")
    mystery.answer("diverged", PLACES[0], "x")
    assert repr(mystery.story()).startswith("not solved yet")
    mystery.answer(fault.kinds[0], fault.place, "positions")
    told = repr(mystery.story())
    assert fault.name in told and "+++ write_positions_in_place" in told
    assert repr(Mystery(mystery.seed).story(give_up=True)) == told
    assert "<h4>" in mystery.story()._repr_html_() and "<p>" in Story(())._repr_html_()


BAD = [
    (("frozen", PLACES[0], "x"), "unknown kind 'frozen'; possible: lost-kernel"),
    (("diverged", "attention", "x"), "unknown place 'attention'; possible: attention.context"),
    ((["diverged"] * 2, PLACES[0], "x"), "2 kinds, 1 places and 1 causes; possible"),
    (([], [], []), "0 kinds"),
]


@pytest.mark.parametrize(("given", "told"), BAD)
def test_an_answer_in_words_that_do_not_exist(given, told):
    with pytest.raises(BadInput, match=told):
        Mystery(0).answer(*given)


def test_kinds_and_places_to_choose_from():
    assert GUESSED_KINDS[-1] == "audit-silent"
    assert len(PLACES) == 12


# ---- a hundred seeds ----


@pytest.fixture(scope="module")
def hundred():
    """As recorded."""
    return survey.load()


def test_each_of_a_hundred_mysteries_is_found_or_has_a_reason(hundred):
    for made in hundred.seeds:
        assert made.faults and made.verdict != "correct"
        assert made.is_accounted_for, made
        assert all(len(reason) > 20 for reason in made.human.values())
    assert [made.seed for made in hundred.seeds] == list(range(100))
    assert sum(made.is_found for made in hundred.seeds) > 50
    assert any(made.human for made in hundred.seeds)
    assert hundred.rung == "emulated" and "--survey" in hundred.provenance.command


@pytest.mark.parametrize("seeds", [FEW, pytest.param(range(100), marks=pytest.mark.slow)], ids=["few", "all"])
def test_the_recorded_survey_holds(hundred, seeds):
    assert survey.make("emulated", seeds).seeds == [hundred.seeds[seed] for seed in seeds]


def test_a_gpu_saw_the_same():
    recorded = survey.load(survey.FILE.with_name("mystery-cuda.json"))
    assert recorded.seeds == survey.load().seeds
    assert recorded.rung == "cuda" and recorded.provenance.gpu.startswith("NVIDIA H")


def test_the_page_counts_as_the_record_does():
    seeds = survey.load().seeds
    found, human = sum(seen.is_found for seen in seeds), sum(bool(seen.human) for seen in seeds)
    page = " ".join((Path(__file__).parents[2] / "docs/audit_evidence.md").read_text().split())
    assert f"audits name every fault of {found}; {human} need a human" in page
    assert len(FAULTS) == 16 and "out of sixteen" in page


def test_the_table_of_a_survey_counts_and_names_no_seed(hundred):
    rows = dict(SurveyTable(hundred).rows()[1:])
    assert int(rows["one fault"]) + int(rows["two faults"]) == 100
    assert rows["no fault"] == rows["neither"] == "0"
    assert int(rows["audits name every fault"]) + int(rows["a human is needed"]) == 100
    assert not any(fault.name in repr(SurveyTable(hundred)) for fault in FAULTS)
    lost = hundred.seeds[0].model_copy(update={"found": {}, "human": {}})
    spoilt = hundred.model_copy(update={"seeds": [lost]})
    assert dict(SurveyTable(spoilt).rows()[1:])["neither"] == "1"


def test_a_survey_is_kept_and_read(hundred, tmp_path):
    hundred.save(tmp_path / "mystery.json")
    assert survey.load(tmp_path / "mystery.json").seeds == hundred.seeds
    with pytest.raises(RecordError, match="make it with mrv2lab mystery --survey"):
        survey.load(tmp_path / "other.json")


# ---- commands ----


@pytest.mark.parametrize(
    ("words", "said"),
    [(["7", "--audit", "99"], "step 99; possible: 0 to 13"), (["-1"], "greater than or equal to 0")],
)
def test_the_command_refuses_before_it_shows_anything(words, said):
    result = CliRunner().invoke(app, ["mystery", "--rung", "emulated", *words])
    assert (result.exit_code, result.stdout) == (2, "") and said in result.stderr


def test_the_command_shows_a_mystery_and_keeps_its_secret():
    seed = seed_of("dispatch_uniform")
    result = CliRunner().invoke(app, ["mystery", str(seed), "--rung", "emulated", "--audit", "1"])
    assert result.exit_code == 0
    assert "graphs off" in result.stdout and "silent-eager: step 1" in result.stdout
    assert "uniform" not in result.stdout
    assert max(map(len, result.stdout.splitlines()[:25])) <= 80


def test_the_command_tells_who_leads_the_game():
    result = CliRunner().invoke(app, ["mystery", "7", "--solution"])
    assert result.exit_code == 0
    assert result.stdout == f"{Mystery(7).story(give_up=True)!r}\n"


def test_the_command_surveys(monkeypatch, tmp_path, hundred):
    few = hundred.model_copy(update={"seeds": hundred.seeds[:3]})
    monkeypatch.setattr(survey, "make", lambda rung, seeds, done: few)
    path = tmp_path / "mystery.json"
    result = CliRunner().invoke(app, ["mystery", "--survey", "--seeds", "3", "--save", str(path)])
    assert result.exit_code == 0 and result.stdout == f"{SurveyTable(few)!r}\n"
    assert survey.load(path).seeds == few.seeds
    lost = few.model_copy(update={"seeds": [few.seeds[0].model_copy(update={"found": {}, "human": {}})]})
    monkeypatch.setattr(survey, "make", lambda rung, seeds, done: lost)
    assert CliRunner().invoke(app, ["mystery", "--survey"]).exit_code == 1


@pytest.mark.parametrize("words", [["mystery"], ["mystery", "3", "--survey"], ["mystery", "-1"]])
def test_bad_input_of_the_command(words):
    assert CliRunner().invoke(app, words).exit_code == 2


def test_runs_are_kept():
    assert runs.serve_with((), "emulated", True) is runs.serve_with((), "emulated", True)


def test_who_names_everything_has_named_nothing():
    fault = next(fault for fault in FAULTS if "positions" in fault.causes)
    everything = " ".join(sorted(_identifiers(fault)))
    said = [everything, "positions", "it is self.input_buffers.positions that moves"]
    marks = [Guess(fault.kinds[0], fault.place, cause).marks(fault) for cause in said]
    assert marks == [(True, True, False), (True, True, True), (True, True, True)]
