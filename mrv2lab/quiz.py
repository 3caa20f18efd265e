"""The quiz at the end of the glossary, with a kernel and without one."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets as ipw

from mrv2lab import journal, looks
from mrv2lab.errors import BadInput, choose
from mrv2lab.questions import QUESTIONS, Question


@dataclass(frozen=True, repr=False)
class Feedback:
    """What comes of an answer: right or not, why if it was right, and where to read."""

    question: Question
    letter: str

    @property
    def right(self) -> bool:
        return self.letter == self.question.right

    def __repr__(self) -> str:
        read = f"read {self.question.place}"
        return f"Right. {self.question.why} ({read})" if self.right else f"Not right: {read}"

    def _repr_html_(self) -> str:
        return f'<span data-right="{str(self.right).lower()}">{looks.marked(repr(self))}</span>'


def answer(number: int, letter: str) -> Feedback:
    """Answer a question of the quiz, by its number and the letter of a choice, and have it noted.

    Raises:
        BadInput: there is no such question, or no such choice.
    """
    choose("question", str(number), [str(n) for n in range(1, len(QUESTIONS) + 1)])
    question = QUESTIONS[number - 1]
    choose("choice", letter, list(_lettered(question)))
    feedback = Feedback(question, letter)
    journal.note_answer(question.name, feedback.right)
    return feedback


class Quiz(ipw.VBox):
    """All questions, each with its choices and a button that checks them; keys are enough to answer.

    Where no kernel answers, in an exported page, the questions stand there with closed answers.
    """

    _numbers = range(len(QUESTIONS))

    def __init__(self) -> None:
        self.choices = [
            ipw.RadioButtons(
                options=[
                    (f"{letter}. {text.replace('`', '')}", letter)
                    for letter, text in _lettered(question).items()
                ],
                value=None,
                layout=ipw.Layout(width="max-content", max_width="100%"),
            )
            for question in QUESTIONS
        ]
        self.buttons = [
            ipw.Button(description="Check", tooltip=f"question {n + 1}", layout=ipw.Layout(flex="0 0 auto"))
            for n in self._numbers
        ]
        self.feedback = [ipw.HTML() for _ in QUESTIONS]
        for n, button in enumerate(self.buttons):
            button.on_click(partial(self._check, n))
        super().__init__([ipw.HTML(looks.style()), *map(self._box, self._numbers)])
        self.add_class("mrv2lab").add_class("mrv2lab-quiz")

    def __repr__(self) -> str:
        return f"Quiz({len(QUESTIONS)} questions)"

    def _box(self, n: int) -> ipw.VBox:
        text = ipw.HTML(f"<b>{n + 1}.</b> {looks.marked(QUESTIONS[n].text)}")
        return ipw.VBox([text, self.choices[n], self.buttons[n], self.feedback[n]])

    def _check(self, n: int, _button: Any = None) -> None:
        try:
            feedback = answer(n + 1, self.choices[n].value or "none")
        except BadInput:
            self.feedback[n].value = "choose an answer first"
            return
        self.feedback[n].value = feedback._repr_html_()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return {**super()._repr_mimebundle_(**kwargs), "text/html": looks.part(questions_html())}


def questions_html() -> str:
    """Questions and choices to read, and the answers closed."""
    return "".join(_question_html(question) for question in QUESTIONS).join(("<ol>", "</ol>"))


def _question_html(question: Question) -> str:
    choices = "".join(f"<li>{looks.marked(text)}</li>" for text in question.choices)
    told = looks.marked(f"{question.right}. {question.why} See {question.place}.")
    return (
        f'<li>{looks.marked(question.text)}<ol type="a">{choices}</ol>'
        f"<details><summary>Answer</summary>{told}</details></li>"
    )


def _lettered(question: Question) -> dict[str, str]:
    return dict(zip("abcdef", question.choices, strict=False))
