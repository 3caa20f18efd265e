"""Pictures as outputs show them: part of the page, and stepped through in the browser alone, from disk."""

import html

import pytest

from mrv2lab import looks, plots
from mrv2lab.cases import get
from mrv2lab.timeline import TimelinePanel

pytestmark = pytest.mark.browser

WIDTHS = (1400, 390)


def as_jupyterlab(picture, words):
    """Two outputs of a cell: a picture of this type is an image there."""
    drawn = picture["image/svg+xml"].replace("%", "%25").replace("#", "%23")
    image = f'<img src="{html.escape(f"data:image/svg+xml,{drawn}")}">'
    return (
        f'<div class="jp-OutputArea-child"><div class="jp-RenderedSVG">{image}</div></div>'
        f'<div class="jp-OutputArea-child">{words["text/html"]}</div>'
    )


def as_the_site(picture, words):
    """Two outputs of a cell as `site/conf.py` hands them over."""
    drawn = looks.part(picture["image/svg+xml"])
    return f'<div class="output">{drawn}</div><div class="output">{words["text/html"]}</div>'


@pytest.fixture(scope="module")
def outputs():
    """The outputs of a plot, then those of a panel."""
    shown = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("IPython.display.display", lambda data, raw, metadata=None: shown.append(data))
        plots.flake_rates([76, 90])._ipython_display_()
        timelines = get("lora_short_circuit").timelines(
            "zero_mapping", "forced_launch", rung="emulated", num_layers=1, batch_size=1
        )
        TimelinePanel(timelines)._ipython_display_()
    return shown


@pytest.fixture(scope="module")
def watched(browser, watch):
    """One page for all: to begin with another one takes longer than to look at it."""
    context = browser.new_context(offline=True)
    yield watch(context.new_page())
    context.close()


@pytest.fixture(params=[as_jupyterlab, as_the_site], ids=["lab", "site"])
def opened(request, outputs, watched, tmp_path):
    """Opens a page with both, of a width and a theme."""
    body = "".join(request.param(*outputs[i : i + 2]) for i in (0, 2))

    def open_page(width, theme="light", more_style=""):
        style = f"<style>html {{ background: {'#111' if theme == 'dark' else '#fff'} }} {more_style}</style>"
        head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        (tmp_path / "page.html").write_text(f'{head}{style}<body data-theme="{theme}">{body}</body>')
        watched.complaints.clear()
        watched.page.set_viewport_size({"width": width, "height": 1000})
        watched.page.goto((tmp_path / "page.html").as_uri())
        watched.screenshot(f"pictures-{request.node.callspec.id}-{theme}-{width}", full_page=True)
        return watched

    return open_page


def lies(page):
    """Where the cursor begins, on the screen."""
    return page.locator("svg rect").first.evaluate("cursor => cursor.getBoundingClientRect().x")


def told(page):
    """The words of the moment, all that is visible of them."""
    (shown,) = page.locator(".stack > div").evaluate_all(
        "moments => moments.filter(part => getComputedStyle(part).visibility === 'visible')"
        ".map(part => part.innerText)"
    )
    return shown


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_picture_is_a_part_of_the_page_and_its_words_are_its_label(opened, width, theme):
    watched = opened(width, theme)
    page = watched.page
    assert page.locator("img").count() == 0 and page.locator("svg.mrv2lab").count() == 2
    assert page.locator(".mrv2lab-words:visible").count() == 0
    assert page.get_by_role("img", name="Lines: share of runs that fail").count() == 1
    assert page.locator("svg text", has_text="share of runs that fail").count() == 1
    turned = page.locator("svg.mrv2lab").first.evaluate("picture => getComputedStyle(picture).filter")
    assert turned.startswith("invert(0.93)") == (theme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    spills = "[...document.querySelectorAll('button')].filter(b => b.scrollWidth > b.clientWidth).length"
    assert page.evaluate(spills) == 0
    smallest = (
        "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
    )
    assert page.evaluate(smallest) >= 7  # also turned by 90 degrees a line is wider than this
    assert watched.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_buttons_keys_and_clicks_move_the_cursor_and_nothing_else(opened, width):
    watched = opened(width)
    page, slider = watched.page, watched.page.locator("input[type=range]")
    back, forward = (page.get_by_role("button", name=name) for name in ("back", "forward"))
    height = page.evaluate("document.documentElement.scrollHeight")
    assert back.is_disabled() and forward.is_enabled() and told(page).startswith("warm-up")
    seen = [(lies(page), told(page))]
    forward.click()
    seen.append((lies(page), told(page)))
    slider.focus()
    while slider.input_value() != slider.get_attribute("max"):
        page.keyboard.press("ArrowRight")
        seen.append((lies(page), told(page)))
        assert page.evaluate("document.documentElement.scrollHeight") == height
    assert len({words for _, words in seen}) >= len(seen) - 2  # moments of two phases may say the same
    assert len(seen) == int(slider.get_attribute("max")) + 1
    assert forward.is_disabled() and told(page).startswith("replay")
    assert slider.get_attribute("aria-valuetext") == f"{len(seen)} of {len(seen)}, replay"
    last = lies(page)
    assert 0 <= last < width  # in view, also where the picture is wider than the page
    page.keyboard.press("Home")
    paper = page.locator("svg.mrv2lab-wide")
    first = page.locator("svg rect").first.bounding_box()
    around = paper.bounding_box()
    paper.click(
        position={"x": first["x"] + 1.5 * first["width"] - around["x"], "y": first["y"] - around["y"] + 9}
    )
    assert slider.input_value() == "1" and (lies(page), told(page)) == seen[1]
    assert watched.complaints == []


def test_the_legend_is_whole_where_the_picture_moves_as_it_grows(opened):
    """As on a page that is scrolled to its end."""
    legend = "document.querySelector('.mrv2lab-timeline small').innerHTML"
    still = opened(1400).page.evaluate(legend)
    moving = opened(1400, more_style="body { position: absolute; bottom: 0; }").page.evaluate(legend)
    assert still.count("<br>") > 2 and moving == still


def test_each_moment_stands_beside_the_names_of_lanes(opened):
    page = opened(390).page
    paper = page.locator(".mrv2lab-part:has(svg.mrv2lab-wide)").last.bounding_box()
    forward = page.get_by_role("button", name="forward")
    ends = "rects => Math.max(...rects.map(rect => rect.getBoundingClientRect().right))"
    while True:
        page.evaluate("new Promise(done => setTimeout(done, 50))")  # it has been told to scroll
        names = page.locator("svg.mrv2lab-wide > g > rect").evaluate_all(ends)  # on the sheets behind them
        cursor = page.locator("svg.mrv2lab-wide > rect[stroke=dimgray]").first.bounding_box()
        middle = cursor["x"] + cursor["width"] / 2
        assert names < middle < paper["x"] + paper["width"]
        if forward.is_disabled():
            return
        forward.click()


def test_names_of_lanes_stay_in_view_when_the_picture_scrolls(opened):
    page = opened(390).page
    paper, names = (
        page.locator(".mrv2lab-part:has(svg.mrv2lab-wide)").last,
        page.locator("svg.mrv2lab-wide > g text"),
    )
    assert names.all_text_contents().count("Python") == 2
    stood = [name.bounding_box()["x"] for name in names.all()]
    paper.evaluate("paper => new Promise(done => { paper.scrollLeft = 9e9; setTimeout(done, 100); })")
    assert paper.evaluate("paper => paper.scrollLeft") > 100
    assert [name.bounding_box()["x"] for name in names.all()] == pytest.approx(stood, abs=1)


def test_play_goes_on_by_itself_and_stops_at_the_end_and_by_a_button(opened):
    watched = opened(1400)
    page, slider = watched.page, watched.page.locator("input[type=range]")
    page.clock.install()
    page.reload()
    play = page.get_by_role("button", name="play")
    play.click()
    page.clock.run_for(3100)
    assert slider.input_value() == "2"
    page.get_by_role("button", name="pause").click()
    page.clock.run_for(3000)
    assert slider.input_value() == "2"
    play.click()
    page.clock.run_for(90_000)
    assert slider.input_value() == slider.get_attribute("max") and play.is_visible()
    play.click()
    page.clock.run_for(100)
    assert slider.input_value() == "0"
    assert watched.complaints == []


def test_where_no_script_runs_the_words_stand_below_the_picture(outputs, browser, tmp_path):
    (tmp_path / "page.html").write_text(f'<meta charset="utf-8">{as_the_site(*outputs[2:])}')
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator(".mrv2lab-words").is_visible() and page.locator("svg.mrv2lab").is_visible()
    context.close()
