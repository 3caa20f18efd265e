"""What a reader has done so far: exercises solved, hints opened, guesses made, questions answered, mysteries.

One JSON file on the reader's own machine, in the user's folder for application data or where
`MRV2LAB_PROGRESS` says. It is sent nowhere and is no part of the repository. Nothing depends on it: where
the file cannot be written nothing is kept, which a warning says, and the exercise that wanted to note
something goes on.
"""

import contextlib
import os
import warnings
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout
from pydantic import AwareDatetime, Field, ValidationError, field_validator

from mrv2lab import catalogue, prose
from mrv2lab.questions import QUESTIONS
from mrv2lab.results import Document, Strict, put_aside

_PUZZLES = str(Path(__file__).parent / "puzzles" / "tape.py")


class Score(Strict):
    """Points in a mystery, of how many."""

    points: float = Field(allow_inf_nan=False)
    of: float = Field(allow_inf_nan=False)


class Progress(Document):
    solved: dict[str, date] = Field(default_factory=dict)  # case to the day its exercise was first solved
    hints: dict[str, list[int]] = Field(default_factory=dict)  # case to the numbers of the hints opened
    guesses: dict[str, str] = Field(default_factory=dict)  # guess to the letter that was chosen first
    begun: dict[str, AwareDatetime] = Field(default_factory=dict)  # case or `mystery SEED` to the first look
    ended: dict[str, AwareDatetime] = Field(default_factory=dict)  # the same to when it was first solved
    quiz: dict[str, bool] = Field(default_factory=dict)  # question to whether the last answer was right
    mysteries: dict[int, Score] = Field(default_factory=dict)  # seed to the best score
    puzzles: dict[str, date] = Field(default_factory=dict)  # name to the day it was first right


def file() -> Path:
    own = os.environ.get("MRV2LAB_PROGRESS")
    default = platformdirs.user_data_path("mrv2lab", appauthor=False) / "progress.json"
    return Path(os.path.expanduser(own)).absolute() if own else default


def load() -> Progress:
    """What is kept; nothing, if there is no file yet or it cannot be read.

    A file that holds something else is set aside, see `set_aside`, and a new one is begun.
    """
    with contextlib.suppress(OSError):
        return _read()
    return Progress()


def _read() -> Progress:
    """As `load`. OSError: there is a file that can neither be read nor set aside, and must not be lost."""
    try:
        return Progress.model_validate_json(file().read_bytes())
    except ValidationError:
        put_aside(file())
    except FileNotFoundError:
        pass
    return Progress()


def set_aside() -> list[Path]:
    """Damaged files of earlier, kept beside the one in use."""
    return sorted(file().parent.glob(f"{file().name}.damaged-*"))


def can_be_kept() -> bool:
    nearest = next(above for above in file().parents if above.exists())
    is_free = file().is_file() or not file().exists()
    return is_free and nearest.is_dir() and os.access(nearest, os.W_OK)


def forget() -> list[Path]:
    """Delete the file, and those set aside. Returns what was deleted. OSError: it cannot be deleted."""
    paths = [path for path in (file(), *set_aside()) if path.exists()]
    for path in (*paths, Path(f"{file()}.lock")):
        path.unlink(missing_ok=True)
    return paths


_KEEPS: dict[str, Callable[[Any, Any], Any]] = {
    "begun": lambda first, _: first or datetime.now(UTC),
    "ended": lambda first, _: first or datetime.now(UTC),
    "solved": lambda first, _: first or datetime.now(UTC).date(),
    "puzzles": lambda first, _: first or datetime.now(UTC).date(),
    "hints": lambda opened, number: sorted({number, *(opened or ())}),
    "guesses": lambda first, letter: first or letter,
    "quiz": lambda _, is_right: is_right,
    "mysteries": lambda best, score: max(best or score, score, key=lambda score: score.points),
}
"""What becomes of what is kept when something is noted: mostly the first time counts."""


def note(kind: str, name: str | int, value: Any = None) -> None:
    """Note what a reader has done: `kind` is a field of `Progress`, `name` and `value` are as it holds them.

    Read, changed and written in one go. Where nothing can be written nothing is kept, and a warning says so.
    """
    try:
        file().parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file()}.lock", timeout=10):  # another notebook may note something as well
            kept = _read()
            noted: dict[Any, Any] = getattr(kept, kind)
            kept.model_copy(update={kind: noted | {name: _KEEPS[kind](noted.get(name), value)}}).save(file())
    except (OSError, Timeout) as error:
        why = getattr(error, "strerror", None) or "it is in use"
        told = f"this cannot be kept: {file()}: {why}; MRV2LAB_PROGRESS may name another file"
        warnings.warn(told, stacklevel=2)
    if kind == "solved":
        note("ended", name)
    if kind == "mysteries" and value.points == value.of:
        note("ended", f"mystery {name}")


class Line(Strict):
    """What a reader may hand out of an item that is solved, or of all guesses: no name, no path, no day."""

    item: str
    seed: int | None = Field(default=None, ge=0)
    minutes: float | None = Field(default=None, ge=0, le=1e6, allow_inf_nan=False)
    hints: int = Field(default=0, ge=0, le=1000)
    guesses: dict[str, str] = Field(default_factory=dict)

    @field_validator("item")
    @classmethod
    def _is_known(cls, item: str) -> str:
        if item not in _items():
            raise ValueError("no case, puzzle or `mystery`, and not `guesses`")
        return item

    @property
    def name(self) -> str:
        return self.item if self.seed is None else f"{self.item} {self.seed}"


def _items() -> set[str]:
    return {*catalogue.entries(), *prose.beside(_PUZZLES), "mystery", "guesses"}


def exported(kept: Progress) -> list[Line]:
    """A line for each item that is solved, and one for the guesses if there are any."""
    took = {name: end - kept.begun[name] for name, end in kept.ended.items() if name in kept.begun}
    minutes = {name: round(time.total_seconds() / 60, 1) for name, time in took.items() if time.days >= 0}
    found = [Line(item=case, hints=len(kept.hints.get(case, []))) for case in kept.solved if case in _items()]
    found += [Line(item="mystery", seed=n) for n, s in sorted(kept.mysteries.items()) if s.points == s.of]
    found += [Line(item=name) for name in kept.puzzles if name in _items()]
    found += [Line(item="guesses", guesses=kept.guesses)] if kept.guesses else []
    return [line.model_copy(update={"minutes": minutes.get(line.name)}) for line in found]


def rows(kept: Progress, level: Callable[[int], int]) -> list[list[str]]:
    """A header, and a row for each exercise, puzzles, guesses, the quiz, and each mystery that was tried."""
    cases, tried = catalogue.entries(), sorted(kept.mysteries.items())
    solved = {case: f"solved {kept.solved[case]}" if case in kept.solved else "not yet" for case in cases}
    right = sum(kept.quiz.get(question.name, False) for question in QUESTIONS)
    return [
        ["what", "state", "hints opened"],
        *([f"exercise {case}", solved[case], str(len(kept.hints.get(case, [])))] for case in cases),
        ["puzzles", f"{len(kept.puzzles)} of {len(prose.beside(_PUZZLES))} right", "-"],
        ["guesses", f"{len(kept.guesses)} made", "-"],
        ["quiz", f"{right} of {len(QUESTIONS)} right", "-"],
        *([f"mystery {n}, level {level(n)} of 3", f"{s.points:g} of {s.of:g}", "-"] for n, s in tried),
    ]


def remarks() -> list[str]:
    """Where it is kept, and what a reader should know of the file."""
    where = "kept in" if can_be_kept() else "cannot be kept, for this file cannot be written:"
    damaged = "could not be read; it was set aside, and a new file was begun"
    return [f"{where} {file()}", *(f"{path} {damaged}" for path in set_aside())]
