"""Questions in a notebook: a guess before a cell, and the quiz. Without a kernel their answers are closed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ipywidgets as ipw

from mrv2lab import journal, looks
from mrv2lab.errors import choose
from mrv2lab.guesses import GUESSES
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
        place = self.question.place
        if not self.right:
            return f"Not right: read {place}, and answer again"
        return f"Right. {self.question.why} (From {place}.)"

    def _repr_html_(self) -> str:
        mark = f'<b class="{looks.tone(self.right)}">{"✔" if self.right else "✘"}</b>'
        return f'<span data-right="{str(self.right).lower()}">{mark} {looks.marked(repr(self))}</span>'


def answer(number: int, letter: str) -> Feedback:
    """Answer a question of the quiz, and have it noted. BadInput: there is no such question or choice."""
    choose("question", str(number), [str(n) for n in range(1, len(QUESTIONS) + 1)])
    question = QUESTIONS[number - 1]
    choose("choice", letter, list(question.lettered))
    feedback = Feedback(question, letter)
    journal.note("quiz", question.name, feedback.right)
    return feedback


class _Choices(ipw.VBox):
    """A question, a button for each choice, and below them what comes of the one that is pressed.

    Buttons and not a list: there the arrow keys would choose on the way from one answer to the next.
    """

    def __init__(self, asked: Question, told: Callable[[str], str], before: str):
        self.asked, self._told, self.reply = asked, told, ipw.HTML()
        self.buttons = {}
        for letter, text in asked.lettered.items():
            self.buttons[letter] = ipw.Button(description=f"{letter}. {text.replace('`', '')}")
            self.buttons[letter].on_click(partial(self._choose, letter))
        text = ipw.HTML(f"{before} {looks.marked(asked.text)}")
        super().__init__([text, *self.buttons.values(), self.reply])
        self.add_class("mrv2lab").add_class("mrv2lab-choices")

    def _choose(self, letter: str, _button: Any = None) -> None:
        for each, button in self.buttons.items():
            (button.add_class if each == letter else button.remove_class)("mod-chosen")
        self.reply.value = f'<span role="status">{self._told(letter)}</span>'


class Guess(_Choices):
    """A question before a cell is run. Any choice opens what will be seen, and none is called wrong.

    BadInput: there is no guess of this name.
    """

    def __init__(self, name: str):
        choose("guess", name, list(GUESSES))
        super().__init__(GUESSES[name], self._note, f"{looks.style()}<b>Guess:</b>")

    def __repr__(self) -> str:
        return f"Guess({self.asked.name!r})"

    def _note(self, letter: str) -> str:
        journal.note("guesses", self.asked.name, letter)
        seen = f"{self.asked.right}. {looks.marked(self.asked.why)}"
        return f"Your guess is {letter}. What you will see is {seen}"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        question = looks.piece("question", self.asked, "<b>Guess:</b> ", "What you will see", "")
        return {**super()._repr_mimebundle_(**kwargs), "text/html": looks.part(question)}


class Quiz(ipw.VBox):
    """Questions, each with its choices: those of one notebook, by its number, or all of them."""

    def __init__(self, notebook: str = "") -> None:
        self.asked = {n: q for n, q in enumerate(QUESTIONS, 1) if q.notebook.startswith(notebook)}
        asked = enumerate(self.asked.items(), 1)
        self.questions = [_Choices(q, partial(_judged, n), f"<b>{at}.</b>") for at, (n, q) in asked]
        super().__init__([ipw.HTML(looks.style()), *self.questions])
        self.add_class("mrv2lab")

    def __repr__(self) -> str:
        return f"Quiz({len(self.asked)} questions)"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        asked = [looks.piece("question", q, "", "Answer", f" See {q.place}.") for q in self.asked.values()]
        still = looks.part(f"<ol>{''.join(f'<li>{question}</li>' for question in asked)}</ol>")
        return {**super()._repr_mimebundle_(**kwargs), "text/html": still}


def _judged(number: int, letter: str) -> str:
    return answer(number, letter)._repr_html_()
