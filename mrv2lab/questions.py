"""The questions of the quiz: what a reader of the pages can answer, and where the answers stand.

Each question names a notebook, a section of it, and a few of its words in which the answer lies: a test
holds that they are there, as text, so that nothing has to be run to know the answer.
"""

from dataclasses import dataclass

from mrv2lab import prose


@dataclass(frozen=True)
class Question:
    """A question with one right choice; or a guess, where nobody can know the answer yet."""

    name: str  # under which an answer is kept
    text: str  # the question; backticks mark code, as in the other texts
    choices: tuple[str, ...]  # in the order in which they are shown, lettered from a
    right: str  # the letter of the right one
    why: str  # in a sentence or two
    notebook: str = ""  # file in which the answer stands. A guess has none, it is answered by the next cell.
    section: str = ""  # the heading there
    says: str = ""  # words of that section in which the answer lies

    @property
    def lettered(self) -> dict[str, str]:
        return dict(zip("abcd", self.choices, strict=False))

    @property
    def place(self) -> str:
        return f"notebook {self.notebook[:2]}, “{self.section.replace('`', '')}”"


QUESTIONS = tuple(Question(name, **told) for name, told in prose.beside(__file__).items())
