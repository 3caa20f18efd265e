"""The exported pages, as a reader opens them: from the disk, without a network, light and dark."""

import contextlib
import re
import warnings
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from moves import TRIES, answers

from mrv2lab import looks, report
from mrv2lab.cases import CASES
from mrv2lab.guesses import GUESSES
from mrv2lab.questions import QUESTIONS
from mrv2lab.results import load, recorded

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = ["index", *sorted(f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("[!.]*.[im][pd]*"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make site` builds it; a warning, as of a link that leads nowhere, is an error.

    In this process, which has imported most of what is needed.
    """
    from sphinx.cmd.build import main  # where no browser test runs, nobody needs it

    folder = tmp_path_factory.mktemp("site")
    build = ("-W", "--keep-going", "-q", "-c", "site", "-d", str(folder / "trees"))
    with contextlib.chdir(ROOT), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Sphinx about its extensions
        assert main([*build, ".", str(folder / "pages")]) == 0
    return folder / "pages"


@pytest.fixture(scope="module", params=["light", "dark"])
def watched(browser, watch, request):
    context = browser.new_context(
        color_scheme=request.param, offline=True, viewport={"width": 1280, "height": 1500}
    )
    watched = watch(context.new_page())
    watched.scheme = request.param
    yield watched
    context.close()


in_light = pytest.mark.parametrize("watched", ["light"], indirect=True)  # where colours have no say


@in_light
@pytest.mark.parametrize("page_name", PAGES)
def test_a_page_opens_offline(site, watched, page_name):
    page = watched.page
    watched.complaints.clear()
    page.goto((site / f"{page_name}.html").as_uri())
    assert page.locator("h1").count() == 1
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth)")
    assert page.locator("img:not([alt]), img[alt=''], svg.mrv2lab:not([aria-label])").count() == 0
    looks_right(watched, "light")
    for width in (390, 800, 1320, 1400, 1450, 1280):  # a phone; then without lists, with two, with one
        page.set_viewport_size({"width": width, "height": 1500})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
            f"wider than {width}"
        )
    assert page.locator("table").evaluate_all(f"tables => tables.flatMap({OVERLAPS})") == []
    watched.screenshot(f"site-{page_name.split('/')[-1]}-light", full_page=True)
    page.emulate_media(color_scheme="dark")
    looks_right(watched, "dark")
    watched.screenshot(f"site-{page_name.split('/')[-1]}-dark", full_page=True)
    page.emulate_media(color_scheme="light")
    assert watched.complaints == []


def looks_right(watched, scheme):
    """Every word has the palette's contrast, and pictures are turned where the page is dark."""
    page = watched.page
    faded = "part => part.textContent && getComputedStyle(part).opacity < 1"
    assert page.evaluate(f"[...document.querySelectorAll('.mrv2lab *')].filter({faded}).length") == 0, (
        "its words have less contrast than the palette"
    )
    filters = page.locator("article img, article svg.mrv2lab").evaluate_all(
        "images => images.map(image => getComputedStyle(image).filter)"
    )
    assert [each for each in filters if each.startswith("invert(0.93)") != (scheme == "dark")] == []
    assert page.locator(".mrv2lab-words:visible").count() == 0


def test_the_theme_can_be_switched_by_keyboard(site, watched):
    page = watched.page
    page.goto((site / "notebooks" / f"{NOTEBOOKS[0].stem}.html").as_uri())
    before = page.locator("article svg.mrv2lab").first.evaluate("image => getComputedStyle(image).filter")
    page.locator(".theme-toggle:visible").first.focus()
    page.keyboard.press("Enter")
    after = page.locator("article svg.mrv2lab").first.evaluate("image => getComputedStyle(image).filter")
    assert before != after
    page.evaluate("localStorage.clear()")  # or the tests that follow would have this theme


@in_light
def test_every_choice_of_a_question_is_answered_by_mouse_and_by_keyboard(site, watched):
    page = watched.page
    watched.complaints.clear()
    page.goto((site / "notebooks/12_lora_short_circuit.html").as_uri())
    questions = page.locator(".mrv2lab-closed")
    asked = [GUESSES["which-hypothesis"], *(q for q in QUESTIONS if q.notebook.startswith("12"))]
    assert questions.count() == len(asked) == 3
    for number, question in enumerate(asked):
        choices = questions.nth(number).locator("details")
        assert choices.locator("p:visible").count() == 0
        for letter, choice in zip(question.lettered, choices.all(), strict=True):
            summary = choice.locator("summary")
            summary.click() if letter == "a" else summary.press("Enter")
            (told,) = questions.nth(number).locator("p:visible").all_inner_texts()  # the others have closed
            why = question.why.replace("`", "")
            if question.notebook:
                assert told.startswith("✔ Right." if letter == question.right else "✘ Not right:")
                assert (why in told) == (letter == question.right) and question.place in told
            else:
                assert told == f"Your guess is {letter}. What you will see is {question.right}. {why}"
    assert watched.complaints == []


@in_light
def test_tries_at_a_puzzle_are_told_as_the_check_tells_them(site, watched):
    page = watched.page
    watched.complaints.clear()
    page.goto((site / "notebooks/03_puzzles.html").as_uri())
    for puzzle, tries in TRIES.items():
        told = page.locator(f".mrv2lab-closed details[name={puzzle}]")
        pieces = page.locator(f".mrv2lab-closed:has(details[name={puzzle}]) pre").all_inner_texts()
        verdicts = {each["code"].strip(): (each["verdict"], each["seen"]) for each in tries}
        verdicts[answers()[puzzle].strip()] = ("correct", "all 9 replays")
        assert sorted(verdicts) == sorted(pieces)
        for code, each in zip(pieces, told.all(), strict=True):
            each.locator("summary").press("Enter")
            first, second, *_ = each.locator("p:visible").all_inner_texts()
            assert first.endswith(f": {verdicts[code][0]}") and verdicts[code][1] in second
    watched.screenshot(f"site-tries-{watched.scheme}", full_page=True)
    assert watched.complaints == []


@in_light
@pytest.mark.parametrize("case", [name for name, case in CASES.items() if "cuda" in case.rungs])
def test_a_panel_shows_the_recorded_run_that_is_chosen(site, watched, case):
    page, runs = watched.page, recorded(case, "cuda")
    watched.complaints.clear()
    (path,) = (path for path in NOTEBOOKS if path.stem.endswith(case))
    page.goto((site / "notebooks" / f"{path.stem}.html").as_uri())
    panel = page.locator(".mrv2lab-recorded")
    shown, choices = panel.locator("[data-run]:visible"), panel.locator("select").all()
    assert shown.count() == 1
    varying = [name for name in runs[0].shape if len({run.shape[name] for run in runs}) > 1]
    for run in (runs[0], runs[-1], runs[len(runs) // 2]):
        for choice, value in zip(choices, (run.variant, *(run.shape[name] for name in varying)), strict=True):
            choice.focus()
            choice.press("Home")
            for _ in range(len(runs)):
                if choice.input_value() == str(value):
                    break
                choice.press("ArrowDown")
        cells = shown.locator("table").first.locator("td").all_inner_texts()
        assert (cells[0], cells[2]) == (run.variant, run.verdict)
        assert run.provenance.gpu in shown.inner_text() and "recorded" in shown.inner_text()
        assert shown.locator("svg.mrv2lab").count() == 1
    page.goto((site / "index.html").as_uri())
    page.go_back()  # the browser puts the lists where they were
    there = " ".join(choice.input_value() for choice in panel.locator("select").all())
    assert shown.get_attribute("data-run") == there
    watched.screenshot(f"site-panel-{case}-{watched.scheme}")
    assert watched.complaints == []


@in_light
def test_a_search_quotes_what_it_found(site, watched):
    page = watched.page
    watched.complaints.clear()
    page.goto((site / "search.html").as_uri() + "?q=poison")
    page.wait_for_selector("#search-results p.context")
    found = page.locator("#search-results li")
    assert found.count() > 3
    assert all("poison" in text.lower() for text in page.locator("p.context").all_inner_texts())
    watched.screenshot(f"site-search-{watched.scheme}", full_page=True)
    assert watched.complaints == []


def test_the_pages_stand_in_groups_by_number(site):
    beside = re.findall(
        r'caption-text">([^<]*)|class="reference internal" href="(?:notebooks/)?([^"#]*)">([^<]*)',
        (site / "index.html").read_text().partition('class="sidebar-tree"')[2].partition('class="main"')[0],
    )
    groups = [group for group, *_ in beside if group]
    assert groups[:2] == ["First", "Cases"]
    named = {page: title for group, page, title in beside if not group}
    assert all(named[f"{path.stem}.html"].startswith(f"{path.stem[:2]} ") for path in NOTEBOOKS)


def test_the_report_opens_offline_and_follows_the_system(watched, tmp_path):
    report.write(
        tmp_path / "report.html", [], [load(ROOT / "data/results/lora_short_circuit/cuda-nvidia-h200.json")]
    )
    watched.complaints.clear()
    watched.page.goto((tmp_path / "report.html").as_uri())
    ground, word = (
        watched.page.locator(place).first.evaluate("place => getComputedStyle(place)." + name)
        for place, name in (("body", "backgroundColor"), (".bad", "color"))
    )
    is_dark = watched.scheme == "dark"
    assert (ground == rgb(looks.DARK[looks.PALETTE["white"]])) == is_dark
    assert word == rgb(looks.DARK[looks.PALETTE["vermilion"]] if is_dark else looks.PALETTE["vermilion"])
    watched.screenshot(f"report-{watched.scheme}", full_page=True)
    assert watched.complaints == []


OVERLAPS = """table => {
    const ranges = [...table.querySelectorAll('th, td')].map(cell => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        return [range.getBoundingClientRect(), cell];
    });
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
    const words = ([, cell]) => cell.textContent;
    const behind = at => ranges.slice(at + 1);
    return ranges.flatMap((one, at) =>
        behind(at).filter(other => meet(one[0], other[0])).map(other => [words(one), words(other)]));
}"""
WORDS = "`runner.lora_manager.modules[0].lora_a_stacked` of the wrong lengths, " * 2


@in_light
@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize(
    "cells",
    [
        f"{looks.piece('cell', WORDS, '', False)}<td>8</td>",
        f"<td><code>{'x' * 120}</code></td><td>8</td>",
        f"<td>{WORDS}</td><td>8</td>",
    ],
    ids=["long", "code", "short by mistake"],
)
def test_no_two_cells_of_a_table_overlap(watched, cells, width):
    page = watched.page
    page.set_viewport_size({"width": width, "height": 600})
    page.set_content(looks.part(f"<table><tr><th>what</th><th>number</th></tr><tr>{cells}</tr></table>"))
    assert page.locator("table").evaluate(OVERLAPS) == []
    page.set_viewport_size({"width": 1280, "height": 1500})


def rgb(colour):
    return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)})"


def test_every_link_leads_to_something_in_the_site(site):
    dead = set()
    for page in [path for path in site.rglob("*.html") if path.stem not in ("genindex", "search")]:
        for address in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            parts = urlsplit(address)
            target = page.parent / unquote(parts.path) if parts.path else page
            external = parts.scheme in ("http", "https", "data")
            if not external and not (target.exists() and has_anchor(target, parts.fragment)):
                dead.add(f"{page.relative_to(site)}: {address}")
    assert dead == set()


def has_anchor(page, fragment):
    return not fragment or page.suffix != ".html" or f'id="{unquote(fragment)}"' in page.read_text()


def test_nothing_is_loaded_from_elsewhere(site):
    """Links to other sites may be followed by a reader; a page may load none."""
    loads = re.compile(
        r'<(?:script|img|iframe|source)[^>]*src="(?:https?:)?//|<link[^>]*href="(?:https?:)?//'
    )
    found = {path.name for path in site.rglob("*.html") if loads.search(path.read_text())}
    sheets = {
        path.name for path in site.rglob("*.css") if re.search(r"url\(.?(?:https?:)?//", path.read_text())
    }
    assert found | sheets == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_shows_what_the_notebook_stores(site, path):
    """Tables, pictures and hints of the stored outputs, once; the stylesheet linked and not repeated.

    Questions ask there in another way.
    """
    page = page_of(site, path)
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    data = [output.get("data", {}) for cell in cells for output in cell.outputs]
    data = [each for each in data if not each.get("text/plain", "").startswith(("Guess(", "Quiz("))]
    stored = [each["text/html"] for each in data if "text/html" in each]
    stored += [each["image/svg+xml"] for each in data if "image/svg+xml" in each]
    assert all(looks.bare(part) in page for part in stored)
    assert not re.search('src="data:image/(?!svg)', page)
    assert "_static/mrv2lab.css" in page and "<style data-mrv2lab" not in page
    assert page.count("<summary>Hint ") == sum(part.count("<summary>Hint ") for part in stored)


def test_pages_mark_recorded_runs(site):
    """What was made from a record says so on the page, in the words of the table or of the picture."""
    marked = {path.stem for path in NOTEBOOKS if "recorded: NVIDIA" in page_of(site, path)}
    told = re.compile(r"recorded: NVIDIA|FixPanel\(")
    assert marked == {path.stem for path in NOTEBOOKS if told.search(path.read_text())} != set()


def page_of(site, path):
    return (site / "notebooks" / f"{path.stem}.html").read_text()
