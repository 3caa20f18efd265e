"""The plans for a session add up, and what they point at is there and looks as they say."""

import re

import links
import nbformat
import pytest

from mrv2lab.cases import get
from mrv2lab.cases.flashmla_lazy_init import errors_by_length, shared_state, state_pair
from mrv2lab.results import recorded

STORED = (links.NOTEBOOKS / "onboarding.md").read_text()
TEXT = re.sub(
    r"\[([^\]]+)\]\(90_glossary\.ipynb#[^)]*\)", r"\1", (links.NOTEBOOKS / "onboarding.md").read_text()
)
PLAN = re.compile(r"^\| (\d+) \| (\d):(\d\d) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
REFERENCE = re.compile(r"\[(\d\d)\]\(([^)]+)\) (\*[^*]+\*(?:, \*[^*]+\*)*)")
FIGURE = re.compile(r"^### Notebook (\d\d), `(.+)`$", re.MULTILINE)


def section(title):
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("title, minutes", [("One hour", 60), ("Half a day", 210)])
def test_the_minutes_add_up(title, minutes):
    rows = PLAN.findall(section(title))
    lengths = [int(row[0]) for row in rows]
    starts = [int(hours) * 60 + int(rest) for _, hours, rest, _, _ in rows]
    assert len(rows) > 8 and sum(lengths) == minutes
    assert starts == [sum(lengths[:n]) for n in range(len(lengths))]


def test_half_a_day_has_breaks():
    rows = PLAN.findall(section("Half a day"))
    breaks = [int(hours) * 60 + int(rest) for _, hours, rest, what, _ in rows if what == "Break"]
    assert len(breaks) == 2 and max(b - a for a, b in zip([0, *breaks], [*breaks, 210], strict=True)) <= 75


def headings(name):
    text = "\n".join(links.read(links.NOTEBOOKS / name))
    return set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))


def test_notebooks_and_sections_are_there():
    found = REFERENCE.findall(TEXT)
    assert len(found) >= 15
    for number, name, listed in found:
        assert name.startswith(number)
        missing = set(re.findall(r"\*([^*]+)\*", listed)) - headings(name)
        assert not missing, (name, missing)


def shows_a_picture(cell):
    return any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", {}))


def pictures(number):
    """The code of all cells of a notebook that show a picture."""
    (path,) = links.NOTEBOOKS.glob(f"{number}_*.ipynb")
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    return "\n".join(cell.source for cell in cells if shows_a_picture(cell))


def test_every_picture_that_is_spoken_of_is_there():
    spoken = FIGURE.findall(TEXT)
    assert len(spoken) == len(set(spoken)) == 9
    for number, call in spoken:
        assert call in pictures(number), (number, call)


def test_a_mystery_in_groups_takes_the_time_it_has():
    minutes = [int(m) for m in re.findall(r"\((\d+) minutes\)", section("A mystery in groups"))]
    (planned,) = (int(row[0]) for row in PLAN.findall(section("Half a day")) if "mystery" in row[3])
    assert sum(minutes) == planned


# ---- what is said of pictures ----


def errors(case, variant, **shape):
    run = get(case).run(variant, rung="emulated", **shape)
    return run.errors, {step for step, mode in enumerate(run.step_modes) if mode == "eager"}


@pytest.mark.parametrize("layers, least, most, twelfth", [(1, 0.35, 0.7, 0.1), (2, 0.4, 0.65, 0.16)])
def test_the_orange_line_of_the_lost_adapters(layers, least, most, twelfth):
    seen, hollow = errors("lora_short_circuit", "zero_mapping", num_layers=layers)
    assert len(seen) == 20 and hollow == {0, 12, 13, 14}
    assert all(seen[step] < 1e-3 for step in (0, 13, 14)) and seen[12] == pytest.approx(twelfth, abs=0.01)
    assert all(least < seen[step] < most for step in set(range(20)) - hollow)


def test_the_orange_hill_of_the_stale_plan():
    seen, hollow = errors("flashmla_lazy_init", "shared_state")
    assert len(seen) == 26 and hollow == {0, 16, 17, 18}
    assert max(seen[:9]) < 1e-3 and seen[9:16] == sorted(seen[9:16]) and 0.75 < seen[15] < 0.85
    assert 0.01 < seen[17] < seen[16] < 0.1 and max(seen[18:]) < 1e-3


def test_the_bars_of_the_stale_plan():
    stale = list(errors_by_length(shared_state, "emulated").values())
    assert max(stale[:2]) < 1e-3 and stale[2:] == pytest.approx([0.1, 0.6, 1.5], abs=0.06)
    assert max(errors_by_length(state_pair, "emulated").values()) < 1e-3


@pytest.mark.parametrize("case", ["lora_short_circuit", "flashmla_lazy_init"])
def test_no_buggy_variant_has_a_line_among_the_speeds(case):
    kept = recorded(case, "cuda")
    assert {run.role for run in kept if run.latency_ms} == {"baseline", "fixed"}
