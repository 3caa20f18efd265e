"""What texts say of vLLM is called so there: in the release that a sentence names, or in 0.23.0."""

import inspect
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
import torch

from mrv2lab.cases import CASES
from mrv2lab.upstream import releases

ROOT = Path(__file__).resolve().parents[1]
RELEASE = "0.23.0"
PAGES = [*sorted(ROOT.glob("notebooks/*.ipynb")), *sorted(ROOT.glob("**/*.md"))]
PAGES = [page for page in PAGES if not {".venv", ".gpu", "node_modules"} & set(page.relative_to(ROOT).parts)]
PAGES.remove(ROOT / "docs/truth.md")  # which speaks of both at once

OURS = {*CASES, *(variant.name for case in CASES.values() for variant in case.variants)}
"""Names of this project: of cases and of variants."""
COMMANDS = re.compile(r"~/|tests/\w+$|mrv2lab\b|make |MRV2LAB_|\S+\.json$|pytest ")
SPEAKS_OF_VLLM = re.compile(r"vLLM|vllm/|[Uu]pstream|release")


def texts(page):
    """The Markdown of a page, without its code."""
    if page.suffix == ".md":
        cells = [page.read_text()]
    else:
        cells = [c.source for c in nbformat.read(page, 4).cells if c.cell_type == "markdown"]
    return [re.sub(r"```.*?```", "", cell, flags=re.DOTALL) for cell in cells]


def claims(page):
    """Sentences that speak of vLLM and name something in code letters: (sentence, name)."""
    for text in texts(page):
        for sentence in re.split(r"(?<=[.:?!])\s+|\n\s*\n|\n[*|]", text):
            if SPEAKS_OF_VLLM.search(sentence):
                spans = re.findall(r"`([^`\n]+)`", sentence)
                yield from ((sentence, span) for span in spans if not COMMANDS.match(span))


def words_of(text):
    """Those that are long enough to be a name."""
    return set(re.findall(r"\w{4,}", text))


@cache
def words(version):
    files = releases.fetch(version).path.rglob("*.py")
    return set().union(*(words_of(file.read_text(errors="ignore")) for file in files))


@pytest.mark.source
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_text_names_is_called_so_in_vllm(page):
    lost = []
    for sentence, span in claims(page):
        named = re.findall(r"\b0\.\d\d\.\d\b", sentence)
        for word in set(re.findall(r"[A-Za-z_]\w{3,}", span)) - OURS:
            is_torchs = "PyTorch" in sentence and word in words_of(inspect.getsource(torch.cuda.graphs))
            # To read a release takes a second or two: most words are in the first.
            if not is_torchs and not any(word in words(version) for version in (RELEASE, *named)):
                lost.append(f"{word}: {' '.join(sentence.split())[:120]}")
    assert not lost, "\n".join(lost)


def test_the_texts_name_much_of_vllm():
    assert sum(len(list(claims(page))) for page in PAGES) > 100
