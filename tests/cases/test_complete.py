"""Whoever adds a case is told here, at once, all that it lacks. CONTRIBUTING.md says what each thing is."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import links
import pytest

from mrv2lab import catalogue
from mrv2lab.audit import KINDS
from mrv2lab.cases import CASES, Case, matrix
from mrv2lab.errors import BadInput
from mrv2lab.live.variants import VARIANTS
from mrv2lab.questions import QUESTIONS
from mrv2lab.record import RECIPES
from mrv2lab.results import RECORDS, recorded
from mrv2lab.upstream import history, probes
from tests import test_links, test_notebooks, test_quiz, test_walkthroughs
from tests.cases import test_audit, test_costs

ROOT = Path(__file__).parents[2]
MIN_STEPS, NUM_HINTS, MIN_MISTAKES = 10, 3, 3


def lacks(name: str, steps: int) -> Iterator[str]:
    """What a case lacks, a sentence each."""
    case = CASES[name]
    pages = sorted((ROOT / "notebooks").glob(f"[1-9]?_{name}.ipynb"))
    files = [
        f"tests/cases/test_{name}.py",
        f"tests/cases/exercises/test_{name}.py",
        f"docs/walkthroughs/{name}.md",
        pages[0].relative_to(ROOT).as_posix() if pages else f"notebooks/1?_{name}.ipynb",
    ]
    yield from (f"{file} is not there" for file in files if not (ROOT / file).exists())
    rows = {
        "README.md": f"| `{name}` |",
        "docs/walkthroughs/README.md": f"| [{name}]({name}.md)",
        "docs/verdicts.md": f"\n {name}\n",
    }
    texts = {page: (ROOT / page).read_text() for page in rows}
    yield from (f"{page} has no row {row.strip()}" for page, row in rows.items() if row not in texts[page])
    row = next((line for line in texts["README.md"].splitlines() if rows["README.md"] in line), "")
    named, linked = re.findall(r"#\d+", case.upstream), re.findall(r"\[(#\d+)\]\(https://", row)
    if row and linked != named:
        yield f"README.md links {', '.join(linked)} in its row, and its `upstream` names {', '.join(named)}"
    if pages and not any(question.notebook == pages[0].name for question in QUESTIONS):
        yield f"mrv2lab/questions.toml asks nothing about {pages[0].name}"
    yield from said_wrongly(case)
    if steps < MIN_STEPS:
        yield f"it serves {steps} steps; at least {MIN_STEPS} are compared"
    yield from not_asked(case)
    for rung in case.rungs:
        yield from lacks_on(case, rung)
    yield from told_elsewhere(name, pages)


def told_elsewhere(name: str, pages: list[Path]) -> Iterator[str]:
    """What tests of pages and records find, in what is this case's and in what all cases share."""
    if name not in test_costs.APART and name not in json.loads(test_costs.FILE.read_text()):
        yield "tests/cases/costs.json does not count it: make costs"
    glossary, walkthrough = links.NOTEBOOKS / links.GLOSSARY, ROOT / f"docs/walkthroughs/{name}.md"
    with pytest.MonkeyPatch.context() as patched:
        yield from failing(test_audit.test_the_page_holds_what_the_command_prints, patched)
    yield from failing(test_quiz.test_the_list_of_places_is_that_of_the_questions)
    for page in (*pages, glossary):
        yield from failing(test_quiz.test_each_page_ends_with_its_own_questions, page)
    for page in pages:
        yield from failing(test_links.test_every_link_is_set_where_it_belongs, page)
        yield from failing(test_links.test_each_bug_was_met_elsewhere, page)
        yield from failing(test_notebooks.test_the_stored_exercise_is_a_stub_that_is_not_solved_yet, page)
        yield from failing(test_notebooks.test_hints_and_solution_are_stored_closed, page)
    if walkthrough.exists():
        yield from failing(test_walkthroughs.test_pages_have_the_same_headings, name)
        yield from failing(
            test_walkthroughs.test_numbers_are_links_paths_exist_and_lines_fit_on_paper, walkthrough
        )


def failing(test: Callable[..., None], *args: object) -> Iterator[str]:
    """A test of another file, by the name under which pytest tells more of it."""
    try:
        test(*args)
    except Exception as error:  # one that finds nothing to look at may raise anything
        where = "::".join((Path(test.__code__.co_filename).relative_to(ROOT).as_posix(), test.__name__))
        yield f"{where}: {error}".splitlines()[0][:200]


def said_wrongly(case: Case) -> Iterator[str]:
    """What its own file has to say."""
    roles = [variant.role for variant in case.variants]
    yield from (
        f"no variant has the role {role}" for role in ("baseline", "buggy", "fixed") if role not in roles
    )
    if "emulated" not in case.rungs:
        yield "it does not claim the rung emulated, on which every case stands"
    for variant in case.variants:
        if not inspect.getdoc(variant.fn):
            yield f"{variant.name} has no docstring"
        has_bug = variant.role not in ("baseline", "fixed")
        if has_bug and not (variant.finding or variant.unseen):
            yield f"{variant.name} states neither its finding nor why it is unseen"
        if variant.finding and variant.finding[0] not in KINDS:
            yield f"{variant.name} states a finding {variant.finding[0]!r}, which is no kind"


def not_asked(case: Case) -> Iterator[str]:
    """What its exercise lacks."""
    exercise = case.exercise
    if exercise is None:
        yield f"mrv2lab/cases/exercises/{case.name}.py: it has no exercise"
        return
    if len(exercise.hints) != NUM_HINTS:
        yield f"its exercise has {len(exercise.hints)} hints, not {NUM_HINTS}"
    if (known := len(exercise.why)) < MIN_MISTAKES:
        yield f"its exercise knows {known} mistakes, not {MIN_MISTAKES}"
    if exercise.solution not in [v.name for v in case.variants if v.role == "fixed"]:
        yield f"its exercise's solution {exercise.solution!r} is no fixed variant"


def lacks_on(case: Case, rung: str) -> Iterator[str]:
    """What it lacks for a rung that it claims."""
    variants = {variant.name for variant in case.variants}
    if rung in ("emulated", "cuda"):
        file = {"emulated": "audit.json", "cuda": "audit-cuda.json"}[rung]
        kept = {cell.variant for cell in matrix.load(RECORDS / file).cells if cell.case == case.name}
        if variants - kept:
            yield f"data/{file} has no row of {', '.join(sorted(variants - kept))}"
    if rung == "source":
        try:
            known = set(probes.get(case.name).variants)
            yield from (f"its probe has no variant {name}" for name in sorted(variants - known))
        except BadInput as error:
            yield str(error)
        if not history.load().of(case.name):
            yield "data/history.json has no line of it"
    if rung == "vllm" and case.name not in VARIANTS:
        yield "mrv2lab/live/variants.py has none of its variants"
    if rung != "emulated":
        if not any(r.rung == rung and r.file.startswith(f"results/{case.name}/") for r in RECIPES):
            yield f"mrv2lab/record.toml has no recipe of it for {rung}"
        if not recorded(case.name, rung):
            yield f"data/results/{case.name}/{rung}-*.json is not there"


@pytest.mark.parametrize("name", catalogue.listed())
def test_every_case_is_complete(name, run_once):
    assert name in CASES, f"mrv2lab/cases/{name}.py has no CASE of the file's name"
    baseline = next((v.name for v in CASES[name].variants if v.role == "baseline"), "")
    steps = len(run_once(name, baseline, "emulated").errors) if baseline else MIN_STEPS
    found = list(lacks(name, steps))
    assert not found, f"{name} lacks {len(found)} things:\n" + "\n".join(found)


def test_what_other_tests_find_is_told_too(monkeypatch, tmp_path):
    name = "lora_short_circuit"
    pages = [links.NOTEBOOKS / f"12_{name}.ipynb"]
    assert list(told_elsewhere(name, pages)) == []
    (tmp_path / "costs.json").write_text("{}")
    monkeypatch.setattr(test_costs, "FILE", tmp_path / "costs.json")
    monkeypatch.setattr(matrix.load, "__defaults__", (RECORDS / "audit-cuda.json",))
    monkeypatch.setattr(test_quiz, "QUESTIONS", QUESTIONS[1:])
    monkeypatch.setattr(links, "read", lambda path: [])
    told = "\n".join(told_elsewhere(name, pages))
    lost = ["costs.json", "what_the_command_prints", "list_of_places", "link_is_set", "met_elsewhere"]
    assert all(words in told for words in lost), told
