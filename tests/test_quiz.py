"""Whoever reads the pages can answer the quiz, and it can be answered with a kernel and without one."""

import html
import re
from collections import Counter

import pytest

from mrv2lab import journal, links, looks
from mrv2lab.errors import BadInput
from mrv2lab.questions import QUESTIONS
from mrv2lab.quiz import Quiz, answer

NUMBERS = range(1, len(QUESTIONS) + 1)


def words(markdown):
    """Prose as it is read: no link targets, no emphasis, no code marks, one space between words."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    return " ".join(re.sub(r"[*`]", "", text).split())


def sections(notebook):
    """Heading to the words below it, up to the next heading."""
    text = "\n\n".join(links.read(links.NOTEBOOKS / notebook))
    parts = re.split(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.MULTILINE)
    return {heading: words(body) for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_the_answer_stands_in_the_text_where_the_question_says(question):
    assert question.says in sections(question.notebook)[question.section]


def test_there_is_one_right_choice_and_its_letter_gives_nothing_away():
    assert len({question.name for question in QUESTIONS}) == len(QUESTIONS) >= 15
    assert all(question.right in "abc"[: len(question.choices)] for question in QUESTIONS)
    letters = Counter(question.right for question in QUESTIONS)
    assert set(letters) == set("abc") and max(letters.values()) <= len(QUESTIONS) / 2


def test_questions_come_from_every_notebook_that_teaches():
    taught = {page.name for page in links.pages() if "00" <= page.name[:2] <= "30"} - {"03_puzzles.ipynb"}
    assert {question.notebook for question in QUESTIONS} == taught


@pytest.mark.parametrize("number", NUMBERS)
def test_a_right_answer_is_told_why_and_a_wrong_one_where_to_read(number):
    question = QUESTIONS[number - 1]
    right = answer(number, question.right)
    wrong = answer(number, next(letter for letter in "ab" if letter != question.right))
    assert right.right and question.why in repr(right)
    assert not wrong.right and question.why not in repr(wrong)
    for feedback in (right, wrong):
        assert question.place in repr(feedback) and question.notebook[:2] in question.place
    assert journal.load().quiz == {question.name: False}


def test_what_is_no_question_or_no_choice_is_bad_input():
    for number, letter in ((0, "a"), (len(QUESTIONS) + 1, "a"), (1, "z"), (1, "")):
        with pytest.raises(BadInput):
            answer(number, letter)
    assert journal.load().quiz == {}


def test_the_widget_checks_what_is_chosen():
    quiz = Quiz()
    assert repr(quiz) == f"Quiz({len(QUESTIONS)} questions)"
    quiz.buttons[1].click()
    assert quiz.feedback[1].value == "choose an answer first"
    quiz.choices[1].value = "b"
    quiz.buttons[1].click()
    assert 'data-right="false"' in quiz.feedback[1].value
    quiz.choices[1].value = QUESTIONS[1].right
    quiz.buttons[1].click()
    assert 'data-right="true"' in quiz.feedback[1].value
    assert journal.load().quiz == {QUESTIONS[1].name: True}


def stored_quiz():
    import nbformat

    cells = nbformat.read(links.NOTEBOOKS / links.GLOSSARY, 4).cells
    (cell,) = (cell for cell in cells if cell.cell_type == "code" and "Quiz()" in cell.source)
    (page,) = (output.data["text/html"] for output in cell.outputs if "text/html" in output.data)
    return page


def test_an_exported_page_holds_questions_and_closed_answers():
    page = stored_quiz()
    assert looks.bare(page) == looks.bare(Quiz()._repr_mimebundle_()["text/html"])
    told = [html.unescape(re.sub("<[^>]*>", "", text)) for text in re.findall("<details>.*?</details>", page)]
    open_text = html.unescape(re.sub("<[^>]*>", "", re.sub("<details>.*?</details>", "", page)))
    assert len(told) == len(QUESTIONS) and "<details open" not in page
    for question, answered in zip(QUESTIONS, told, strict=True):
        why = question.why.replace("`", "")
        assert question.text.replace("`", "") in open_text and why not in open_text
        assert why in answered and question.place in answered


def test_the_list_of_places_is_that_of_the_questions():
    (listed,) = (text for text in links.read(links.NOTEBOOKS / links.GLOSSARY) if "Where the answers" in text)
    assert re.findall(r"^(\d+)\. \[(\d+)\]\((.*?)\), \*(.*)\*$", listed, re.MULTILINE) == [
        (str(n), q.notebook[:2], q.notebook, q.section.replace("`", "")) for n, q in enumerate(QUESTIONS, 1)
    ]
