"""What a reader has done so far: exercises solved, hints opened, questions answered, mysteries cleared up.

One JSON file on the reader's own machine, in the user's folder for application data or where
`MRV2LAB_PROGRESS` says. It is sent nowhere and is no part of the repository. Nothing depends on it: where
the file cannot be written nothing is kept, which a warning says, and the exercise that wanted to note
something goes on.
"""

import contextlib
import os
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import platformdirs
from pydantic import Field, ValidationError

from mrv2lab.results import Document, Strict


class Score(Strict):
    """Points in a mystery, of how many."""

    points: float
    of: float


class Progress(Document):
    """All that is kept.

    Attributes:
        solved: case to the day its exercise was first solved.
        hints: case to the numbers of the hints opened.
        guesses: name of a guess to the letter that was chosen first.
        begun: item, a case or `mystery SEED`, to when somebody first had it in front of them.
        ended: item to when it was first solved.
        quiz: name of a question to whether it was answered right the last time.
        mysteries: seed to the best score.
    """

    solved: dict[str, date] = Field(default_factory=dict)
    hints: dict[str, list[int]] = Field(default_factory=dict)
    guesses: dict[str, str] = Field(default_factory=dict)
    begun: dict[str, datetime] = Field(default_factory=dict)
    ended: dict[str, datetime] = Field(default_factory=dict)
    quiz: dict[str, bool] = Field(default_factory=dict)
    mysteries: dict[int, Score] = Field(default_factory=dict)


def file() -> Path:
    """Where it is kept."""
    own = os.environ.get("MRV2LAB_PROGRESS")
    default = platformdirs.user_data_path("mrv2lab", appauthor=False) / "progress.json"
    return Path(own).expanduser().absolute() if own else default


def load() -> Progress:
    """What is kept; nothing, if there is no file yet or it cannot be read.

    A file that holds something else is set aside, see `set_aside`, and a new one is begun.
    """
    try:
        return Progress.model_validate_json(file().read_bytes())
    except ValidationError:
        _put_aside(file())
    except OSError:
        pass
    return Progress()


def set_aside() -> list[Path]:
    """Damaged files of earlier, kept beside the one in use."""
    return sorted(file().parent.glob(f"{file().name}.damaged-*"))


def can_be_kept() -> bool:
    """Whether this user may write the file."""
    path = file()
    if path.exists():
        return path.is_file() and os.access(path.parent, os.W_OK)
    nearest = next(above for above in path.parents if above.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def forget() -> list[Path]:
    """Delete the file, and those set aside. Returns what was deleted.

    Raises:
        OSError: it cannot be deleted.
    """
    paths = [path for path in (file(), *set_aside()) if path.exists()]
    for path in paths:
        path.unlink()
    return paths


# ---- notes ----


def note_begun(item: str) -> None:
    """Somebody has this item in front of them. The first time counts."""
    _change(lambda kept: kept.model_copy(update={"begun": {item: datetime.now(UTC)} | kept.begun}))


def note_solved(case: str) -> None:
    """A reader's own function solved the exercise of this case. The first time counts."""

    def update(kept: Progress) -> Progress:
        now = datetime.now(UTC)
        news = {"solved": {case: now.date()} | kept.solved, "ended": {case: now} | kept.ended}
        return kept.model_copy(update=news)

    _change(update)


def note_hint(case: str, number: int) -> None:
    """A hint of this case's exercise was opened."""

    def update(kept: Progress) -> Progress:
        opened = sorted({number, *kept.hints.get(case, [])})
        return kept.model_copy(update={"hints": kept.hints | {case: opened}})

    _change(update)


def note_answer(question: str, right: bool) -> None:
    """A question of the quiz was answered. The last answer counts."""
    _change(lambda kept: kept.model_copy(update={"quiz": kept.quiz | {question: right}}))


def note_mystery(seed: int, points: float, of: float) -> None:
    """The mystery of this seed was given an answer worth `points` of `of`. The best one counts."""

    def update(kept: Progress) -> Progress:
        best = max(points, kept.mysteries[seed].points if seed in kept.mysteries else points)
        ended = ({f"mystery {seed}": datetime.now(UTC)} if points == of else {}) | kept.ended
        news = {"mysteries": kept.mysteries | {seed: Score(points=best, of=of)}, "ended": ended}
        return kept.model_copy(update=news)

    _change(update)


def _change(update: Callable[[Progress], Progress]) -> None:
    """Read, change, write in one go. Where nothing can be written nothing is kept, and a warning says so."""
    try:
        update(load()).save(file())
    except OSError as error:
        told = f"this cannot be kept: {file()}: {error.strerror}; MRV2LAB_PROGRESS may name another file"
        warnings.warn(told, stacklevel=3)


def _put_aside(path: Path) -> None:
    number = len(set_aside()) + 1
    with contextlib.suppress(OSError):
        path.replace(path.with_name(f"{path.name}.damaged-{number}"))


# ---- to look at ----


class Line(Strict):
    """What a reader may hand out of an item that is solved, or of all guesses: no name, no path, no day."""

    item: str = Field(pattern=r"^\w{1,60}$")  # a case, `mystery` or `guesses`
    seed: int | None = None
    minutes: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    hints: int = Field(default=0, ge=0)
    guesses: dict[str, str] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.item if self.seed is None else f"{self.item} {self.seed}"


def exported(kept: Progress) -> list[Line]:
    """A line for each item that is solved, and one for the guesses if there are any."""
    found = [Line(item=case, hints=len(kept.hints.get(case, []))) for case in kept.solved]
    cleared = [seed for seed, score in sorted(kept.mysteries.items()) if score.points == score.of]
    found += [Line(item="mystery", seed=seed) for seed in cleared]
    found += [Line(item="guesses", guesses=kept.guesses)] if kept.guesses else []
    both = kept.begun.keys() & kept.ended.keys()
    took = {name: (kept.ended[name] - kept.begun[name]).total_seconds() / 60 for name in both}
    minutes = {name: round(length, 1) for name, length in took.items() if length >= 0}
    return [line.model_copy(update={"minutes": minutes.get(line.name)}) for line in found]


def rows(kept: Progress, cases: Sequence[str], questions: Sequence[str]) -> list[list[str]]:
    """A header, a row for each exercise, one for the quiz, and one for each mystery that was tried."""
    right = sum(kept.quiz.get(name, False) for name in questions)
    return [
        ["what", "state", "hints opened"],
        *([f"exercise {case}", _solved(kept, case), str(len(kept.hints.get(case, [])))] for case in cases),
        ["quiz", f"{right} of {len(questions)} right", "-"],
        *(
            [f"mystery {seed}", f"{s.points:g} of {s.of:g}", "-"]
            for seed, s in sorted(kept.mysteries.items())
        ),
    ]


def _solved(kept: Progress, case: str) -> str:
    return f"solved {kept.solved[case]}" if case in kept.solved else "not yet"


def remarks() -> list[str]:
    """Where it is kept, and what a reader should know of the file."""
    where = "kept in" if can_be_kept() else "cannot be kept, for this file cannot be written:"
    damaged = "could not be read; it was set aside, and a new file was begun"
    return [f"{where} {file()}", *(f"{path} {damaged}" for path in set_aside())]
