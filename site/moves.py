"""What moves on the static pages, where no kernel answers: guesses, questions, tries at puzzles, panels.

All that can come of them is known when the pages are made, and lies in them closed. Questions and tries need
no script. A panel has one, which shows the run that was chosen.
"""

import html
import json
import linecache
import os
import re
import tempfile
import tomllib
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from mrv2lab import looks, plots, puzzles
from mrv2lab.cases import get
from mrv2lab.guesses import GUESSES
from mrv2lab.puzzles.tape import PUZZLES
from mrv2lab.questions import QUESTIONS, Question
from mrv2lab.quiz import Feedback
from mrv2lab.results import Run, recorded
from mrv2lab.tables import VerdictTable, heading
from mrv2lab.widgets import kernels_html

HERE = Path(__file__).resolve().parent
TRIES: dict[str, list[dict[str, str]]] = tomllib.loads((HERE / "tries.toml").read_text())
WIDGET = re.compile(r"(Guess|Quiz|FixPanel)\('?([\w-]*)")
CHECKED = re.compile(r'^check\("(\w+)"', re.MULTILINE)
SCRIPT = f"<script>{looks.on_one_line(HERE / 'panel.js')}</script>"
_numbers = count(1)


def asked(number: str, data: dict[str, Any]) -> str:
    """An output with HTML as a page shows it: a question with each answer closed, anything else as it is.

    Args:
        number: of the notebook, `12`.
        data: of the output, as the notebook stores it.
    """
    widget = WIDGET.match("".join(data.get("text/plain", "")))
    match widget and widget.groups():
        case "Guess", name:
            guess = GUESSES[name]
            seen = f"What you will see is {guess.right}. {looks.marked(guess.why)}"
            told = {letter: f"Your guess is {letter}. {seen}" for letter in guess.lettered}
            return _part(_choices(guess, "<b>Guess:</b> ", told))
        case "Quiz", _:
            here = [q for q in QUESTIONS if number == "90" or q.notebook.startswith(number)]
            return _part(f"<ol>{''.join(f'<li>{_question(question)}</li>' for question in here)}</ol>")
    return looks.bare("".join(data["text/html"]))


def behind(cell: dict[str, Any]) -> str:
    """What a page adds behind a cell: recorded runs to choose from, or tries at the puzzle that it checks."""
    told = ("".join(output.get("data", {}).get("text/plain", "")) for output in cell["outputs"])
    if panels := [widget[2] for widget in map(WIDGET.match, told) if widget and widget[1] == "FixPanel"]:
        return _panel(panels[0])
    checked = CHECKED.search("".join(cell["source"]))
    return _tries(checked[1]) if checked else ""


def _part(body: str) -> str:
    return looks.bare(looks.part(body))


def _question(question: Question) -> str:
    told = {letter: Feedback(question, letter)._repr_html_() for letter in question.lettered}
    return _choices(question, "", told)


def _choices(question: Question, before: str, told: dict[str, str]) -> str:
    """A question, and each choice with what comes of it closed. Opening one closes the others."""
    closed = "".join(
        f'<details name="{question.name}"><summary>{letter}. {looks.marked(text)}</summary>'
        f"<p>{told[letter]}</p></details>"
        for letter, text in question.lettered.items()
    )
    return f'<p>{before}{looks.marked(question.text)}</p><div class="mrv2lab-closed">{closed}</div>'


# ---- puzzles ----


def functions(source: str) -> dict[str, Any]:
    """What an answer defines, under a file name of its own and with lines that can be quoted."""
    file = f"<answer {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, file, "exec"), names)
    return {name: names[name] for name in ("captured", "before", "after") if name in names}


@cache
def answers() -> dict[str, str]:
    """A right answer to each puzzle, as the notebook gives it."""
    cells = json.loads((HERE.parent / "notebooks/03_puzzles.ipynb").read_text())["cells"]
    texts = {cell["id"]: "".join(cell["source"]) for cell in cells}
    found = {name: re.search(r"```python\n(.*?)```", texts[f"{name}-1"], re.DOTALL) for name in PUZZLES}
    return {name: answer[1] for name, answer in found.items() if answer}


def _tries(puzzle: str) -> str:
    """Answers that people would try, the right one among them, each with what the check says of it closed."""
    tried = [each["code"] for each in TRIES[puzzle]]
    tried.insert(sum(map(ord, puzzle)) % (len(tried) + 1), answers()[puzzle])
    told = "".join(
        f"<div><pre>{html.escape(code.strip())}</pre>"
        f'<details name="{puzzle}"><summary>Check {letter}</summary>{_outcome(puzzle, code)}</details></div>'
        for letter, code in zip("abcde", tried, strict=False)
    )
    question = "Without a kernel: which of these makes the graph right?"
    checked = "Each was checked when this page was made."
    return _part(f'<p>{question} {checked}</p><div class="mrv2lab-closed">{told}</div>')


def _outcome(puzzle: str, code: str) -> str:
    with tempfile.TemporaryDirectory() as folder:  # what a page solves is nobody's progress
        kept, os.environ["MRV2LAB_PROGRESS"] = os.environ.get("MRV2LAB_PROGRESS"), f"{folder}/progress.json"
        try:
            told = puzzles.check(puzzle, **functions(code), backend="emulated")
        finally:
            del os.environ["MRV2LAB_PROGRESS"]
            os.environ.update({"MRV2LAB_PROGRESS": kept} if kept else {})
    return "".join(f"<p>{line}</p>" for line in map(html.escape, repr(told).splitlines()))


# ---- panels ----


def _panel(name: str) -> str:
    """The recorded runs of a case on a GPU, one of them shown; the page's script shows another."""
    if not (runs := recorded(name, "cuda")):
        return ""
    varying = [key for key in runs[0].shape if len({run.shape[key] for run in runs}) > 1]
    runs.sort(key=lambda run: (run.role == "baseline", [run.shape[key] for key in varying]))
    chosen = [{"variant": run.variant} | {key: str(run.shape[key]) for key in varying} for run in runs]
    controls = "".join(
        f"<label>{heading(key)} <select>{_options([each[key] for each in chosen])}</select></label> "
        for key in chosen[0]
    )
    repair, shown = get(name)._exercise.solution, ""
    for run, key in zip(runs, chosen, strict=True):
        hidden = " hidden" if shown else ""
        told = _run(run, [other for other in runs if other.variant == repair and other.shape == run.shape])
        shown += f'<div data-run="{html.escape(" ".join(key.values()))}"{hidden}>{told}</div>'
    body = f"<p>Without a kernel: runs that were recorded on a GPU.</p><p>{controls}</p>{shown}{SCRIPT}"
    return _part(f'<div class="mrv2lab-recorded">{body}</div>')


def _options(values: list[str]) -> str:
    return "".join(f"<option>{html.escape(value)}</option>" for value in dict.fromkeys(values))


def _run(run: Run, repaired: list[Run]) -> str:
    """A run's verdict and errors, and where its graphs differ from those of the repair at the same shape."""
    message = f"<p>{html.escape(run.message)}</p>" if run.message else ""
    picture = looks.part(plots.errors_per_step([run], recorded=True).svg()) if run.errors else ""
    beside = [other for other in repaired if other != run]
    return (
        f"{VerdictTable([run], recorded=True)._repr_html_()}{message}{picture}{kernels_html([run, *beside])}"
    )
