"""What the panel steps through, and where the cursor lies; that it moves is tested in a browser."""

import json

import pytest

from mrv2lab.cases import get
from mrv2lab.timeline import TimelinePanel, plot


@pytest.fixture(scope="module")
def panel():
    return TimelinePanel(get("flashmla_lazy_init").timelines("shared_state", "state_pair", rung="emulated"))


@pytest.fixture(scope="module")
def moments(panel):
    return json.loads(panel.steps())["moments"]


def test_phases_come_in_order(moments):
    assert list(dict.fromkeys(phase for _, _, phase, _ in moments)) == [
        "warm-up", "capture", "new inputs", "replay",
    ]  # fmt: skip


def test_the_cursor_goes_from_left_to_right_within_the_picture(panel, moments):
    width = 72 * panel.plot.figure.get_figwidth()
    middles = [(left + right) / 2 for left, right, *_ in moments]
    assert middles == sorted(middles) and all(0 < left < right < width for left, right, *_ in moments)
    assert len(set(middles)) == len(middles) >= 10


def test_the_cursor_covers_the_lanes_of_each_run_and_no_title(panel):
    steps = json.loads(panel.steps())
    height = 72 * panel.plot.figure.get_figheight()
    titles = [
        text for text in panel.plot.figure.axes[0].texts if text.get_text().endswith((" (buggy)", " (fixed)"))
    ]
    to_points = panel.plot.figure.dpi / 72
    below = [height - text.get_window_extent().y0 / to_points for text in titles]
    assert len(steps["tops"]) == len(below) == 2
    for top, title, next_title in zip(steps["tops"], below, [below[1] - 20, height], strict=True):
        assert title < top and top + steps["height"] < next_title


def test_the_words_hold_line_value_and_graph(moments):
    read = next(runs for _, _, phase, runs in moments if phase == "capture" and "reads" in runs[0]["happens"])
    buggy, fixed = read
    assert "if tile_scheduler_metadata is None:" in buggy["line"] and "flash_mla.py:" in buggy["line"]
    assert "tile_scheduler_metadata: a device tensor." in buggy["happens"]
    assert "frozen into the graph" in buggy["happens"]
    assert "tile_scheduler_metadata: None" in fixed["happens"] and "frozen" not in fixed["happens"]
    *_, (buggy, fixed) = moments[-1]
    assert "<code>get_mla_metadata_kernel</code>" not in buggy["in the graph"]
    assert "<code>get_mla_metadata_kernel</code>" in fixed["in the graph"]


def test_its_text_is_the_text_of_the_picture(panel):
    assert repr(panel) == plot(panel.lanes.timelines).alt


def test_a_page_without_scripts_has_the_picture_and_its_words(panel, displayed):
    panel._ipython_display_()
    (picture, _), (words, _) = displayed
    assert picture == {"image/svg+xml": plot(panel.lanes.timelines).svg(), "text/plain": repr(panel)}
    line, _, script = words["text/html"].partition("<script>")
    assert "mrv2lab-words" in line and "get_mla_metadata_kernel" in line
    assert panel.steps() in script and script.count("</script>") == 1 == words["text/html"].count("<script")


def test_an_address_is_the_one_of_now_and_the_sentence_has_the_old_one():
    buggy, fixed = get("pp_eager_fallback").timelines("moving_buffers", "full_graphs", rung="emulated")
    moments = json.loads(TimelinePanel([buggy, fixed]).steps())["moments"]
    shown, _ = next(runs for _, _, phase, runs in moments if phase == "replay")
    assert shown["address"] == f"<code>{buggy.frozen.new:#x}</code>"
    assert f"It reads {buggy.frozen.old:#x};" in shown["happens"]
