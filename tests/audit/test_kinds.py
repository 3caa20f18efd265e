"""Whoever adds a kind of finding is told here, at once, all that it lacks. See CONTRIBUTING.md."""

import ast
from collections.abc import Iterator
from pathlib import Path

import links
import pytest

from mrv2lab.audit import KINDS, kinds
from mrv2lab.mystery import GUESSED_KINDS

ROOT = Path(__file__).parents[2]


def accepted(file: Path) -> set[str]:
    """The kinds with which a program of the corpus may be named first."""
    body = ast.parse(file.read_text()).body
    assigned = [
        node.value
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECT"
    ]
    return {kind for value in assigned for kind in ast.literal_eval(value)}


def lacks(kind: kinds.KindOfFinding) -> Iterator[str]:
    """What a kind lacks, a sentence each."""
    name, stem = kind.KIND, kind.__name__.rpartition(".")[2]
    if name != stem.replace("_", "-"):
        yield f"it is called {name}, and its file {stem}.py"
    if len(kind.SHORT) > 5 or kinds.SHORT_KINDS.count(kind.SHORT) > 1:
        yield f"{kind.SHORT!r} is no head for a column of five letters, or is another kind's too"
    if kind in kinds.CAUSES and [cause.RANK for cause in kinds.CAUSES].count(kind.RANK) > 1:
        yield f"another cause has the rank {kind.RANK} too"
    terms = [term.name for term in links.terms("\n\n".join(links.read(links.NOTEBOOKS / links.GLOSSARY)))]
    if name not in [term.strip("`") for term in terms]:
        yield f"notebooks/{links.GLOSSARY} has no entry for it"
    if f"`{name}`" not in (ROOT / "docs/audit.md").read_text():
        yield "docs/audit.md does not name it among the kinds"
    if f"`{name}`" not in "\n".join(links.read(links.NOTEBOOKS / "30_audit_your_code.ipynb")):
        yield "notebooks/30_audit_your_code.ipynb has no row of it in its table of kinds"
    programs = [
        *Path(__file__).parent.glob("corpus/wrong/*.py"),
        *Path(__file__).parent.glob("corpus/bad_input/*.py"),
    ]
    if not any(name in accepted(file) for file in programs):
        yield "no program in tests/audit/corpus/wrong has it in EXPECT"


@pytest.mark.parametrize("kind", kinds.ALL, ids=KINDS)
def test_every_kind_is_complete(kind):
    found = list(lacks(kind))
    assert not found, f"{kind.KIND} lacks {len(found)} things:\n" + "\n".join(found)


def test_a_mystery_may_be_answered_with_every_kind():
    assert (*KINDS, "audit-silent") == GUESSED_KINDS
