"""What moves on the static pages: every answer of the right thing, beside what it is compared with."""

import moves
import pytest

from mrv2lab import looks
from mrv2lab.cases import CASES
from mrv2lab.guesses import GUESSES
from mrv2lab.questions import QUESTIONS
from mrv2lab.results import recorded


def test_the_right_try_stands_in_no_certain_place():
    pages = {name: moves._tries(name) for name in moves.TRIES}
    tries = [page.split("<summary>Check ")[1:] for page in pages.values()]
    assert len({[": correct" in told for told in each].index(True) for each in tries}) > 1
    assert all(page.count(": correct") == 1 for page in pages.values())


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_compared_with_the_repair_at_its_own_shape(case, monkeypatch):
    asked = []
    monkeypatch.setattr(moves, "_run", lambda run, repaired: asked.append((run, repaired)) or "")
    moves._panel(case)
    assert len(asked) == len(recorded(case, "cuda"))
    for run, (repair,) in asked:
        assert repair.shape == run.shape and repair.variant == CASES[case].exercise.solution


def test_a_case_without_records_of_a_gpu_has_no_panel_of_them(monkeypatch):
    monkeypatch.setattr(moves, "recorded", lambda case, rung: [])
    assert moves._panel("stale_view") == ""


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_each_choice_is_told_what_comes_of_it(question):
    told = moves._question(question).split("<summary>")[1:]
    for letter, text in zip(question.lettered, told, strict=True):
        assert text.startswith(f"{letter}. ")
        assert (looks.marked(question.why) in text) == (letter == question.right)


def test_a_guess_is_told_whatever_it_is():
    name, asked = next(iter(GUESSES.items()))
    page = moves.asked("01", {"text/plain": f"Guess({name!r})", "text/html": ""})
    assert page.count(looks.marked(asked.why)) == len(asked.choices) == page.count("Your guess is ")
