"""The panel steps through the picture, quickly, and an exported page has the picture."""

import base64
import html
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mrv2lab.cases import get
from mrv2lab.timeline import TimelinePanel, plot


@pytest.fixture(scope="module")
def panel():
    return TimelinePanel(get("flashmla_lazy_init").timelines("shared_state", "state_pair", rung="emulated"))


@pytest.fixture(autouse=True)
def from_the_start(panel):
    panel.slider.value = 1


def test_buttons_and_slider_go_the_same_way(panel):
    panel.forward.click()
    panel.forward.click()
    assert panel.slider.value == 3
    panel.back.click()
    by_button = panel.words.value, panel.picture.value
    panel.slider.value = 1
    panel.slider.value = 2
    assert (panel.words.value, panel.picture.value) == by_button


def test_it_stops_at_both_ends(panel):
    assert panel.back.disabled and not panel.forward.disabled
    panel.slider.value = panel.slider.max
    assert panel.forward.disabled and not panel.back.disabled
    panel.forward.click()
    assert panel.slider.value == panel.slider.max == len(panel.columns)


def test_each_step_shows_another_picture_and_other_words_within_a_second(panel):
    panel._frames.clear()
    pictures, words = set(), set()
    for value in range(1, panel.slider.max + 1):
        start = time.process_time()
        panel.slider.value = value
        panel._show()
        assert time.process_time() - start < 1
        pictures.add(panel.picture.value)
        words.add(panel.words.value)
    assert len(pictures) == panel.slider.max
    assert len(words) >= panel.slider.max - 2  # steps of two phases may say the same


def test_two_threads_that_draw_at_once_draw_what_one_draws(panel):
    """JupyterLab's subshells: a click is answered while the picture of the one before is being drawn."""
    alone = {}
    for column in panel.columns:
        panel._frames.clear()
        alone[column] = panel._frame(column)
    panel._frames.clear()
    with ThreadPoolExecutor(4) as pool:
        together = dict(zip(panel.columns, pool.map(panel._frame, panel.columns), strict=True))
    assert together == alone


def test_phases_come_in_order(panel):
    seen = []
    for value in range(1, panel.slider.max + 1):
        panel.slider.value = value
        seen.append(panel.words.value.split('data-phase="')[1].split('"')[0])
    assert list(dict.fromkeys(seen)) == ["warm-up", "capture", "new inputs", "replay"]


def test_the_words_hold_line_value_and_graph(panel):
    columns = [panel.lanes.columns[i] for i in panel.columns]
    read = next(i for i, c in enumerate(columns) if c.phase == "capture" and c.slot.sort == "read")
    panel.slider.value = read + 1
    buggy, fixed = panel.words.value.split("<tr>")[2:]
    assert "if tile_scheduler_metadata is None:" in buggy and "flash_mla.py:" in buggy
    assert (
        "tile_scheduler_metadata: &#x27;a device tensor&#x27;" in buggy and "frozen into the graph" in buggy
    )
    assert "tile_scheduler_metadata: None" in fixed and "frozen" not in fixed
    panel.slider.value = panel.slider.max
    buggy, fixed = panel.words.value.split("<tr>")[2:]
    assert "<code>get_mla_metadata_kernel</code>" not in buggy.partition("what")[2]
    assert "<code>get_mla_metadata_kernel</code>" in fixed


def test_its_text_is_the_text_of_the_picture(panel):
    assert repr(panel) == f"TimelinePanel. {plot(panel.lanes.timelines).alt}"


def test_an_exported_page_has_the_picture(panel, displayed):
    panel.forward.click()
    panel._ipython_display_()
    (bundle, _), (picture, _), _ = displayed
    assert bundle["text/plain"] == repr(panel)
    assert "step through this picture" in bundle["text/html"] and "<img" not in bundle["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert picture["text/plain"] == panel.alt
    without_a_band = plot(panel.lanes.timelines).png()
    assert base64.b64decode(picture["image/png"]) == without_a_band
    assert f'<img alt="{html.escape(panel.alt)}" src="data:image/png;base64,' in panel.picture.value


def test_an_address_is_the_one_of_now_and_the_sentence_has_the_old_one():
    buggy, fixed = get("pp_eager_fallback").timelines("moving_buffers", "full_graphs", rung="emulated")
    panel = TimelinePanel([buggy, fixed])
    phases = [panel.lanes.columns[i].phase for i in panel.columns]
    panel.slider.value = phases.index("replay") + 1
    row = panel.words.value.split("<tr>")[2]
    assert f"<code>{buggy.frozen.new:#x}</code>" in row
    assert f"It reads {buggy.frozen.old:#x};" in row
