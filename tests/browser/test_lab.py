"""Every notebook in JupyterLab, in a real browser: it asks no other machine for anything, and its panels work
by mouse and by keyboard. Screenshots lie in out/screenshots."""

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from mrv2lab.cases import CASES
from mrv2lab.questions import QUESTIONS as ASKED

pytestmark = pytest.mark.browser

NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
WHOLE = ("01_capture_and_replay", "30_audit_your_code")  # run cell by cell to the end: the two quickest
AGAIN = "90_glossary"  # asks the questions of all others once more
QUESTIONS = Counter(question.notebook[:2] for question in ASKED) | {AGAIN[:2]: len(ASKED)}


@pytest.fixture
def notebook(workbook, name):
    workbook.open(name, whole=name in WHOLE)
    yield workbook
    workbook.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_answers(notebook, name):
    ran = [cell for cell in notebook.ran if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in ran)
    outputs = [output for cell in notebook.cells for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert notebook.page.locator(".jp-OutputArea img, svg.mrv2lab:not([aria-label])").count() == 0
    assert notebook.page.locator("text=/Error displaying widget|Loading widget/").count() == 0

    # Each picture has its words and turns dark with the page; a panel is shown, and not its stand-in as well.
    assert notebook.page.locator(".mrv2lab-words:visible").count() == 0
    assert notebook.page.locator(".jp-OutputArea:has(.mrv2lab-switch) .jp-RenderedSVG:visible").count() == 0
    panels = notebook.page.locator(".mrv2lab-timeline")
    assert panels.count() == sum("TimelinePanel(" in cell["source"] for cell in notebook.cells)
    for panel in panels.all():
        use_the_timeline(notebook, panel)

    switches = notebook.page.locator(".mrv2lab-switch")
    assert switches.count() == sum("FixPanel(" in cell["source"] for cell in notebook.cells)
    for number in range(switches.count()):
        use_the_switch(notebook, switches.nth(number))
    ladders = notebook.page.locator(".mrv2lab-hints")
    assert ladders.count() == sum("HintLadder(" in cell["source"] for cell in notebook.cells)
    for number in range(ladders.count()):
        use_the_hints(notebook, ladders.nth(number))
    choices = notebook.page.locator(".mrv2lab-choices")
    guesses = sum(cell["source"].count('Guess("') for cell in notebook.cells)
    assert choices.count() == guesses + QUESTIONS[name[:2]]
    for number in range(0, choices.count(), 5 if name == AGAIN else 1):
        choose(notebook, choices.nth(number))
    open_the_solutions(notebook)

    read_it_on_a_phone(notebook)
    if name in WHOLE or os.environ.get("MRV2LAB_SCREENSHOTS"):
        show(notebook, name)
    assert notebook.watched.complaints == []


def test_no_notebook_hears_what_the_kernel_still_does_for_the_one_before(workbook):
    """Nor does that one, though it is closed while its cells run."""
    workbook.open("13_breakable_graph")
    workbook.begin_again()
    workbook.close()
    workbook.open("01_capture_and_replay")
    assert workbook.watched.complaints == []
    workbook.close()


def test_no_verdict_is_left_beside_choices_that_nobody_answers(workbook):
    workbook.open("12_lora_short_circuit")
    panel = workbook.page.locator(".mrv2lab-panel")
    assert panel.locator("[data-verdict]").first.is_visible() and panel.locator("svg.mrv2lab").is_visible()
    workbook.restart()
    panel.and_(workbook.page.locator(".jupyter-widgets-disconnected")).wait_for()
    assert panel.locator("[data-verdict]:visible, svg.mrv2lab:visible").count() == 0
    assert "run the cell again" in panel.evaluate("panel => getComputedStyle(panel, '::after').content")
    workbook.close()


def test_a_notebook_that_is_opened_again_has_no_error_for_a_panel(workbook):
    workbook.open("12_lora_short_circuit")
    workbook.open_again("12_lora_short_circuit")
    panel = workbook.page.locator(".mrv2lab-panel.jupyter-widgets-disconnected")
    panel.wait_for()
    assert workbook.page.locator("text=/Error displaying widget|Loading widget/").count() == 0
    assert panel.locator("[data-verdict]:visible, svg.mrv2lab:visible").count() == 0
    workbook.close()


def use_the_switch(notebook, switch):
    """By mouse, then by keyboard. Each variant shows the verdict that it states."""
    buttons = switch.locator("button")
    variants = [re.search(r"(\w+)\)?$", text)[1] for text in buttons.all_text_contents()]
    (case,) = [case for case in CASES.values() if set(variants) <= {v.name for v in case.variants}]
    panel = notebook.page.locator(".mrv2lab").filter(has=switch)
    took_ms = []
    for variant, button in [*zip(variants, buttons.all(), strict=True)][::-1]:
        took_ms.append(notebook.click(button, variant))
        verdict = panel.locator("[data-verdict]").first.get_attribute("data-verdict")
        assert verdict == case.variant(variant).expected
    print(f"{case.name}: toggles took {', '.join(f'{ms:.0f}' for ms in took_ms)} ms")

    buttons.first.focus()
    notebook.page.keyboard.press("Tab")
    assert buttons.nth(1).evaluate("button => button === document.activeElement")
    assert buttons.nth(1).evaluate("button => getComputedStyle(button).outlineStyle") == "solid"
    notebook.page.keyboard.press("Enter")
    panel.locator("[data-verdict]", has_text=variants[1]).first.wait_for()
    notebook.page.keyboard.press("Shift+Tab")
    notebook.page.keyboard.press("Space")
    panel.locator("[data-verdict]", has_text=variants[0]).first.wait_for()


def use_the_timeline(notebook, panel):
    """By keyboard, while no other cell is chosen by the keys; nothing moves but the cursor and the words."""
    slider, page = panel.locator("input"), notebook.page
    legend = panel.locator("small").first.inner_html().split("<br>")[1:]
    assert legend and all(len(line) > 3 for line in legend), legend  # no mark without its words
    height = panel.evaluate("panel => panel.offsetHeight")
    seen = """slider => [
        slider.value, slider === document.activeElement, slider.closest('.mrv2lab-timeline').offsetHeight
    ]"""
    slider.focus()
    for number in range(1, int(slider.get_attribute("max")) + 1):
        page.keyboard.press("ArrowRight")
        assert slider.evaluate(seen) == [str(number), True, height]
    assert panel.get_by_role("button", name="forward").is_disabled()


def use_the_hints(notebook, ladder):
    """By keyboard, one after the other: each opens, and wakes the next one."""
    buttons = ladder.locator("button").all()
    assert len(buttons) == 3
    for number, button in enumerate(buttons):
        assert [each.is_enabled() for each in buttons] == [i <= number for i in range(3)]
        button.focus()
        notebook.page.keyboard.press("Enter")
        opened = button.locator("xpath=..").locator(".widget-html-content")
        opened.filter(has_text=re.compile(r"\w")).wait_for()
        buttons[min(number + 1, 2)].and_(ladder.locator("button:enabled")).wait_for()


def choose(notebook, choices):
    """By keyboard: Tab goes from choice to choice, and Enter opens what comes of it."""
    buttons = choices.locator("button").all()
    buttons[0].focus()
    for _ in buttons[1:]:
        notebook.page.keyboard.press("Tab")
    assert buttons[-1].evaluate("button => button === document.activeElement")
    assert buttons[-1].evaluate("button => getComputedStyle(button).outlineStyle") == "solid"
    notebook.page.keyboard.press("Enter")
    choices.locator("[role=status]").filter(has_text=re.compile(r"\w")).wait_for()


def open_the_solutions(notebook):
    """By keyboard; each is closed before."""
    solutions = notebook.page.locator("details", has_text="Solution: the upstream repair").all()
    for solution in solutions:
        assert solution.get_attribute("open") is None
        solution.locator("summary").focus()
        notebook.page.keyboard.press("Enter")
        solution.locator("pre").last.wait_for(state="visible")


def read_it_on_a_phone(notebook):
    """Pictures of panels stay pictures, and no choice runs out of its button or off the page."""
    before = notebook.page.viewport_size
    notebook.page.set_viewport_size({"width": 390, "height": 900})
    notebook.page.wait_for_timeout(500)  # JupyterLab lays its cells out anew
    widths = "parts => parts.map(part => part.getBoundingClientRect().width)"
    pictures = notebook.page.locator("svg.mrv2lab:visible")
    assert [width for width in pictures.evaluate_all(widths) if width <= 200] == []
    overflows = "buttons => buttons.map(button => button.scrollHeight - button.clientHeight)"
    buttons = notebook.page.locator(".mrv2lab-choices button")
    assert [overflow for overflow in buttons.evaluate_all(overflows) if overflow > 1] == []
    assert [width for width in buttons.evaluate_all(widths) if width >= 390] == []
    notebook.page.set_viewport_size(before)


def show(notebook, name):
    """Screenshots of the panel or, without one, of the first picture, table or text that was made."""
    places = (
        ".mrv2lab-switch",
        "svg.mrv2lab",
        ".jp-OutputArea .mrv2lab",
        ".jp-OutputArea",
    )
    found = (notebook.page.locator(place) for place in places)
    next(place for place in found if place.count()).first.evaluate("place => place.scrollIntoView()")
    notebook.screenshots(f"lab-{name}")
