"""Readers of the pages can answer the quiz; who guesses is told what is seen; a kernel is not needed."""

import html
import re
from collections import Counter

import links
import nbformat
import pytest

from mrv2lab import journal, looks
from mrv2lab.errors import BadInput
from mrv2lab.guesses import GUESSES
from mrv2lab.questions import QUESTIONS
from mrv2lab.quiz import Guess, Quiz, answer

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
    asked = Counter(question.notebook for question in QUESTIONS)
    taught = {page.name for page in PAGES} - {links.GLOSSARY}
    assert set(asked) == taught and min(asked.values()) >= 2


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
    question = quiz.questions[1]
    for letter, right in (("b", "false"), (QUESTIONS[1].right, "true")):
        question.buttons[letter].click()
        assert f'data-right="{right}"' in question.reply.value
        assert question.reply.value.startswith('<span role="status">')  # read out when it comes
        chosen = [each for each, button in question.buttons.items() if "mod-chosen" in button._dom_classes]
        assert chosen == [letter]
    assert journal.load().quiz == {QUESTIONS[1].name: True}


def test_a_quiz_of_one_notebook_notes_its_own_questions():
    quiz = Quiz("11")
    names = [question.name for question in QUESTIONS if question.notebook.startswith("11")]
    assert [each.asked.name for each in quiz.questions] == names and len(names) == 2
    quiz.questions[1].buttons[quiz.questions[1].asked.right].click()
    assert journal.load().quiz == {names[1]: True}


def code_cells(path):
    return [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]


def html_of(cell):
    (page,) = (output.data["text/html"] for output in cell.outputs if "text/html" in output.data)
    return page


PAGES = [page for page in links.pages() if page.suffix == ".ipynb"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_page_ends_with_its_own_questions(path):
    number = "" if path.name == links.GLOSSARY else f'"{path.name[:2]}"'
    # Only the first page has something behind them: how far its reader is.
    last = [cell for cell in code_cells(path) if "ProgressPanel" not in cell.source][-1]
    assert last.source.splitlines()[-1] == f"Quiz({number})"
    quiz = Quiz(number.strip('"'))
    assert looks.bare(html_of(last)) == looks.bare(quiz._repr_mimebundle_()["text/html"])


# ---- guesses ----

GUESS = re.compile(r'^Guess\("([\w-]+)"\)$', re.MULTILINE)


def stored_guesses():
    cells = [cell for path in PAGES for cell in code_cells(path)]
    return [(match[1], cell) for cell in cells for match in GUESS.finditer(cell.source)]


def test_every_guess_stands_on_one_page_and_no_page_asks_without_one():
    names = [name for name, _ in stored_guesses()]
    assert sorted(names) == sorted(GUESSES) and len(names) == len(set(names)) > 20
    asked = [path.name for path in PAGES if "**Guess" in "".join(links.read(path))]
    assert asked == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_a_page_says_after_a_guess_is_closed(path):
    cells = nbformat.read(path, 4).cells
    for at, cell in enumerate(cells):
        if GUESS.search(cell.source):
            told = next(each.source for each in cells[at:] if each.cell_type == "markdown")
            assert told.startswith(("<details>", "#")), told  # a heading begins something else


@pytest.mark.parametrize("name", GUESSES)
def test_any_guess_opens_what_will_be_seen_and_only_the_first_is_noted(name):
    asked, guess = GUESSES[name], Guess(name)
    assert 3 <= len(asked.choices) <= 4 and asked.right in asked.lettered
    replies = set()
    for letter in asked.lettered:
        guess.buttons[letter].click()
        told = guess.reply.value
        assert f"Your guess is {letter}." in told
        replies.add(told.replace(f"Your guess is {letter}.", ""))
    (told,) = replies  # the same for all
    assert f"{asked.right}. {looks.marked(asked.why)}" in told
    assert journal.load().guesses == {name: "a"}


def test_guesses_do_not_favour_a_letter():
    letters = Counter(asked.right for asked in GUESSES.values())
    assert set(letters) == set("abc") and max(letters.values()) <= len(GUESSES) / 2


def test_what_is_no_guess_is_bad_input():
    with pytest.raises(BadInput):
        Guess("no-such-guess")


def test_a_stored_guess_is_closed():
    for name, cell in stored_guesses():
        page = html_of(cell)
        assert looks.bare(page) == looks.bare(Guess(name)._repr_mimebundle_()["text/html"])
        folded = "".join(re.findall("<details>.*?</details>", page))
        why = looks.marked(GUESSES[name].why)
        assert page.count(why) == folded.count(why) == 1


def stored_quiz():
    (cell,) = (cell for cell in code_cells(links.NOTEBOOKS / links.GLOSSARY) if "Quiz()" in cell.source)
    return html_of(cell)


def test_an_exported_page_holds_questions_and_closed_answers():
    page = stored_quiz()
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
