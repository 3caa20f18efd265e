"""docs/reliability.md says what was recorded, and nothing that was recorded is bad."""

import json
from pathlib import Path
from runpy import run_path

import pytest

FILES = sorted((Path(__file__).parents[2] / "data").glob("faults-*.json"))


def test_the_page_is_made_of_the_records():
    made = run_path(str(Path(__file__).with_name("page.py")))
    assert made["page"]() == made["PAGE"].read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_recorded_fault_was_contained_and_nothing_lost_or_left(file):
    part = json.loads(file.read_text())
    bad = [row for row in part["rows"] if not row["contained"] or row["left"]]
    assert (bad, part["lost"]) == ([], 0) and len(part["rows"]) > 5
