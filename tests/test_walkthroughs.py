"""The pages to print for walkthroughs: one for each case, all alike, and what they point to is there."""

import re
from pathlib import Path

import nbformat
import pytest

from mrv2lab.cases import CASES

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "walkthroughs"
HEADINGS = [
    "1. In one sentence",
    "2. Who was hit",
    "3. Containment before cause",
    "4. Timeline",
    "5. The test that was missing",
    "6. The same bug with other tools",
    "7. Questions for the room",
]
NUMBER = re.compile(r"#(\d{4,})\b")
LINK = re.compile(r"\[(?:[\w./-]+)?#(\d+)\]\(https://github\.com/[\w-]+/[\w.-]+/(?:pull|issues)/(\d+)\)")
TOP = "|".join(sorted(path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."))
PATH = re.compile(rf"`((?:{TOP})/[^`\s]+)`")
QUOTED = re.compile(r"<!--.*?-->")  # not on paper
RELATIVE = re.compile(r"\]\((?!https?:)([^)#]+)[^)]*\)")


def pages():
    return sorted(FOLDER.glob("*.md"))


def unlinked(text):
    """Numbers of pull requests and issues that are no link where they stand first, or that lead elsewhere."""
    wrong = {number for number, target in LINK.findall(text) if number != target}
    linked = {match.start(1): match[1] for match in LINK.finditer(text)}
    first = {}
    for match in NUMBER.finditer(text):
        first.setdefault(match[1], match.start(1))
    return wrong | {number for number, place in first.items() if place not in linked}


def missing(path):
    """What a page names in this repository, in code or by a link, and what is not there."""
    text = path.read_text()
    named = [ROOT / name for name in PATH.findall(text)]
    named += [path.parent / name for name in RELATIVE.findall(text)]
    return {str(place) for place in named if not place.exists()}


OF_CASES = [name for name in CASES if (FOLDER / f"{name}.md").exists()]


def test_every_page_is_a_cases_and_the_list_has_them_in_their_order():
    assert {path.stem for path in pages()} == {"README", *OF_CASES}
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\)", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert listed == [(name, name) for name in OF_CASES]


@pytest.mark.parametrize("name", OF_CASES)
def test_pages_have_the_same_headings(name):
    text = (FOLDER / f"{name}.md").read_text()
    assert text.startswith(f"# {name}: ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert len(re.findall(r"^\d\. \*.+\?\*", text.split(f"## {HEADINGS[-1]}")[1], re.MULTILINE)) == 3


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_numbers_are_links_paths_exist_and_lines_fit_on_paper(path):
    text = path.read_text()
    assert unlinked(text) == set()
    assert missing(path) == set()
    assert [line for line in QUOTED.sub("", text).splitlines() if len(line) > 130] == []


def text_of(path):
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = nbformat.read(path, 4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


OTHERS = [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.ipynb")), ROOT / "notebooks/onboarding.md"]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_numbers_are_links_on_all_other_pages_too(path):
    assert unlinked(text_of(path)) == set()


def test_what_must_be_found_is_found(tmp_path):
    good = "[#43139](https://github.com/vllm-project/vllm/pull/43139), then #43139"
    assert unlinked(good) == set()
    assert unlinked("#43139, then " + good) == {"43139"}
    assert unlinked(good.replace("pull/43139", "pull/43140")) == {"43139"}
    page = tmp_path / "page.md"
    page.write_text(
        "`data/nowhere.json`, `data/history.json`, `v1/worker/gpu/x.py:1`, [a](no.md), [b](page.md#there)"
    )
    assert missing(page) == {str(ROOT / "data/nowhere.json"), str(tmp_path / "no.md")}
