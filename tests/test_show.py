"""What people look at: tables, plots, diffs, the report."""

import itertools
import re

import pytest

from mrv2lab import looks, plots, report, source, sources
from mrv2lab.audit import AuditReport, Finding, Place
from mrv2lab.cases import matrix
from mrv2lab.mystery import survey
from mrv2lab.results import Latency, Provenance, Record, Run
from mrv2lab.tables import (
    CrashTable,
    FindingTable,
    SpeedTable,
    VerdictTable,
    error_band,
    failure,
    heading,
    in_unit,
    rung_line,
)  # fmt: skip
from mrv2lab.upstream import history

PROVENANCE = Provenance(
    gpu="NVIDIA H200", driver="1", torch="2", triton="3", vllm=None, python="3.12",
    commit="c", command="mrv2lab run", seed=0, date="2026-01-02T03:04:05Z",
    sources=sources.of("cuda", "verdict"),
)  # fmt: skip


def run(variant="forced_launch", role="fixed", verdict="correct", errors=(0.0, 1e-7), batch_size=4, **more):
    fields = {
        "case": "lora_short_circuit", "rung": "cuda", "expected": verdict, "step_modes": ["eager", "graph"],
        "shape": {"batch_size": batch_size}, "provenance": PROVENANCE, "metrics": {"replayed_steps": 1},
    }  # fmt: skip
    made = Run(variant=variant, role=role, verdict=verdict, errors=[0.0] * len(errors), **fields | more)
    return made.model_copy(update={"errors": list(errors)})  # here a right one may be as wrong as it likes


FIXED = run(latency_ms=Latency(median=0.3, p20=0.2, p80=0.4), eager_share=0.0)
WRONG = run("zero_mapping", "buggy", "wrong", (0.0, 0.6))


def test_table_shows_what_was_found_beside_what_was_stated():
    surprise = run("eager", "baseline", "wrong", (0.0, 0.6), expected="correct", eager_share=0.3)
    lines = repr(VerdictTable([FIXED, WRONG, surprise], ["replayed_steps"])).splitlines()
    head = ["variant", "role", "verdict", "replayed steps", "as stated", "error", "outside graphs"]
    assert re.split("  +", lines[0]) == head
    assert re.split("  +", lines[1]) == ["forced_launch", "fixed", "correct", "1", "yes", "≤ 0.001", "≤ 10%"]
    assert "> 10%" in lines[3] and re.split("  +", lines[2])[6] == "-"
    assert re.split("  +", lines[2])[2:6] == ["wrong", "1", "yes", "> 0.1"]
    assert "must be correct" in lines[3]
    assert lines[4] == "rung: cuda (NVIDIA H200)"


def test_the_rung_line_says_whose_classes_ran_on_what():
    on_cpu = PROVENANCE.model_copy(update={"gpu": None, "vllm": "0.23.0"})
    model = "a model of capture on the CPU: verdicts, no speeds"
    assert rung_line(FIXED) == "rung: cuda (NVIDIA H200)"
    assert rung_line(run(rung="emulated", provenance=on_cpu)) == f"rung: emulated ({model})"
    line = rung_line(run(rung="source", provenance=on_cpu))
    assert line == f"rung: source (vllm 0.23.0's own classes on {model})"


def test_table_says_how_runs_of_one_variant_differ():
    lines = repr(VerdictTable([FIXED, run(batch_size=8)])).splitlines()
    assert [re.split("  +", line)[3] for line in lines[:3]] == ["batch size", "4", "8"]


def test_crash_table_shows_each_report_once_and_where_it_was_recorded():
    def crash(where, **shape):
        fields = {"variant": "unwritten", "role": "buggy", "verdict": "crash", "errors": ()}
        return run(**fields, step_modes=[], where=where, message="assert <x>", shape=shape)

    runs = [FIXED, *(crash(f"a.py:{9 - b} in f", batch_size=n, blocking=b) for n in (1, 2) for b in (0, 1))]
    table = CrashTable(runs, ["blocking"])
    lines = [re.split("  +", line) for line in repr(table).splitlines()]
    assert lines[0] == ["variant", "blocking", "reported at", "message"]
    assert lines[1:3] == [["unwritten", str(b), f"a.py:{9 - b} in f", "assert <x>"] for b in (0, 1)]
    assert lines[3][0].startswith("recorded: NVIDIA H200") and len(lines) == 4
    assert "&lt;x&gt;" in table._repr_html_() and "NVIDIA H200" in table._repr_html_()


def test_a_run_that_failed_is_told_with_its_traceback_and_others_are_not():
    tail = ["Traceback (most recent call last):", '  File "<x>.py", line 1, in f', "NameError: <n>"]
    fields = {"step_modes": [], "message": "NameError: <n>", "log_tail": tail, "expected": "crash"}
    failed = run("unwritten", "buggy", "failed", (), **fields)
    told = repr(VerdictTable([FIXED, failed])).splitlines()
    assert told[3:-1] == ["unwritten failed: NameError: <n>", *tail] and "must be crash" in told[2]
    page = VerdictTable([FIXED, failed])._repr_html_()
    assert '<b class="bad">failed</b>' in page
    assert page.count("<details>") == 1
    assert "<details><summary>unwritten failed: NameError: &lt;n&gt;</summary><pre>Traceback" in page
    crash = failed.model_copy(update={"verdict": "crash"})
    assert "Traceback" not in repr(VerdictTable([crash])) + VerdictTable([crash])._repr_html_()


@pytest.mark.parametrize(
    "message, told",
    [
        ("exit status 0 without a result: exit status 0 without a result, and not a word",
         "exit status 0 without a result, and not a word"),
        ("SIGTERM: SIGTERM, and not a word", "ended by SIGTERM, and not a word"),
        ("SIGKILL: Capturing: 100%",
         "ended by SIGKILL (often by the system, for lack of memory); its log says: Capturing: 100%"),
        ("StageDied: stage 0 of 2 ended with status 1: MemoryError: ",
         "StageDied: stage 0 of 2 ended with status 1: MemoryError"),
    ],
)  # fmt: skip
def test_what_is_known_of_a_failure_is_told_once(message, told):
    failed = run("unwritten", "buggy", "failed", (), step_modes=[], message=message, expected="crash")
    assert failure(failed) == [f"unwritten failed: {told}"]


def timed(variant, ms, role="fixed", verdict="correct", **metrics):
    latency = Latency(median=ms, p20=ms, p80=ms) if ms else None
    return run(variant, role, verdict, rung="vllm", latency_ms=latency, metrics=metrics)


TIMED = [
    timed("eager", 4.0, ttft_ms=20.0),
    timed("zero_mapping", None, "buggy", "wrong"),
    timed("forced_launch", 1.0, ttft_ms=30.0),
]


def test_speeds_stand_beside_verdicts_and_a_wrong_answer_has_none():
    table = SpeedTable(TIMED, ["ttft_ms"])
    assert table.rows()[0] == ["variant", "verdict", "step, ms", "first token, ms"]
    assert table.rows()[1:] == [
        ["eager", "correct", "4", "20"],
        ["zero_mapping", "wrong", "none", "none"],
        ["forced_launch", "correct", "1", "30"],
    ]
    assert repr(table).splitlines()[-1].startswith("recorded: NVIDIA H200")
    assert "recorded: NVIDIA H200" in table._repr_html_()
    assert re.findall(r"<b class[^>]*>(\w+)</b>", table._repr_html_()) == ["correct", "wrong", "correct"]


def test_speeds_relative_to_a_variant():
    table = SpeedTable(TIMED, ["ttft_ms"], relative_to="eager")
    assert [row[2:] for row in table.rows()[1:]] == [["1.00×", "1.00×"], ["none", "none"], ["0.25×", "1.50×"]]
    assert repr(table).endswith("; relative to eager")


def test_numbers_stand_on_the_right_and_words_on_the_left():
    table = VerdictTable([FIXED, run(batch_size=16)])
    text = repr(table).splitlines()
    assert all(
        size in line
        for line, size in zip(text, ["batch size  ", "         4  ", "        16  "], strict=False)
    )
    row = re.findall(r"<td([^>]*)>(.+?)</td>", table._repr_html_())
    assert [side for side, cell in row if cell in ("4", "16")] == [' align="right"'] * 2
    assert [side for side, cell in row if cell == "yes"] == [""] * 2
    assert '<th align="right">batch size</th>' in table._repr_html_()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("pool_bytes", 2**21, "2"),
        ("capture_ms", 116.28, "116"),
        ("ttft_ms", 3.3, "3.30"),
        ("graphs", 4.0, "4"),
    ],
)
def test_numbers_are_no_finer_than_their_headings_need(name, value, told):
    assert in_unit(name, value) == told
    assert heading(name) in ("memory of graphs, MiB", "capture, ms", "first token, ms", "graphs")


def test_crash_table_without_crashes_says_so():
    assert repr(CrashTable([FIXED])).splitlines()[-1] == "no crash is recorded"


def words(axes):
    return {text.get_text() for text in axes.texts}


def points(axes):
    """Where marks stand, by series."""
    lines = [line for line in axes.lines if line.get_transform() == axes.transData and len(line.get_xdata())]
    return [[list(line.get_xdata()), list(line.get_ydata())] for line in lines]


def test_a_plot_names_what_crashed_and_an_empty_one_does_not_warn(recwarn):
    crash = run("unwritten", "buggy", "crash", (), step_modes=[])
    (axes,) = plots.errors_per_step([crash]).figure.axes
    assert {"unwritten\ncrash", "no step was finished"} <= words(axes)
    (axes,) = plots.errors_per_step([FIXED, crash]).figure.axes
    assert "unwritten\ncrash" in words(axes) and "no step was finished" not in words(axes)
    assert words(plots.latency([]).figure.axes[0]) == set()
    assert not recwarn.list


def test_html_table_marks_verdicts_and_escapes_names():
    page = VerdictTable([run("<b>")])._repr_html_()
    assert 'data-verdict="correct"' in page and "&lt;b&gt;" in page and "<b>&" not in page


@pytest.mark.parametrize(
    ("errors", "band"),
    [([1e-3], "≤ 0.001"), ([0.05], "0.001 to 0.1"), ([0.2], "> 0.1"), ([], "no result")],
)
def test_error_bands(errors, band):
    assert error_band(run(verdict="wrong", errors=errors, step_modes=["graph"] * len(errors))) == band


def test_error_plot_draws_each_run_and_names_its_source():
    figure = plots.errors_per_step([FIXED, WRONG], recorded=True).figure
    (axes,) = figure.axes
    assert {"forced_launch\ncorrect", "zero_mapping\nwrong"} <= words(axes)
    assert axes.get_yscale() == "log" and 0.6 in [points[1] for _, points in points(axes) if len(points) > 1]
    assert figure.get_supxlabel() == "recorded, rung cuda: NVIDIA H200, torch 2, triton 3, 2026-01-02"
    assert "run for this page" in plots.errors_per_step([FIXED]).figure.get_supxlabel()


def marks(plot):
    """Where marks stand."""
    (axes,) = plot.figure.axes
    lines = [line for line in axes.lines if line.get_transform() == axes.transData]
    marked = [line for line in lines if line.get_marker() != "None"]
    return [mark for line in marked for mark in zip(line.get_xdata(), line.get_ydata(), strict=True)]


def test_a_hollow_mark_differs_from_a_filled_one_in_size_as_well():
    (axes,) = plots.errors_per_step([run(errors=(0.0, 0.5), step_modes=["eager", "graph"])]).figure.axes
    sizes = {
        line.get_markerfacecolor(): line.get_markersize()
        for line in axes.lines
        if line.get_transform() == axes.transData and line.get_marker() != "None"
    }
    filled = sizes.keys() - {"white"}
    assert len(filled) == 1 and sizes["white"] >= 1.5 * sizes[filled.pop()]


def test_no_mark_lies_on_another():
    per_step = marks(plots.errors_per_step([run(name, errors=(0.0, 0.5)) for name in ("a", "b", "c")]))
    by_length = marks(plots.errors_by_length({name: {"x": 0.0, "y": 0.2} for name in "abc"}, "emulated"))
    for found in (per_step, by_length):
        assert len(set(found)) == len(found) == 6
        assert len({y for _, y in found if y <= 1e-8}) == 3  # zeros: a row for each


@pytest.mark.parametrize(("largest", "is_empty"), [(1e-4, True), (0.5, True), (0.05, False)])
def test_the_band_between_right_and_wrong_is_called_empty_only_if_it_is(largest, is_empty):
    (axes,) = plots.errors_per_step([run(errors=(0.0, largest))]).figure.axes
    zeros, band = axes.patches
    assert 1e-8 < zeros.get_y() + zeros.get_height() < 1e-6  # all rows of zeros lie in a strip of their own
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((1e-3, 0.1))
    assert ("below the band: right" in axes.get_title("left")) == is_empty
    assert not any("band" in text for text in words(axes))  # it would hide marks


def test_names_beside_a_plot_do_not_overlap_and_stay_beside_it():
    runs = [run(name, errors=(0.0, 0.4 if name < "d" else 0.0)) for name in "abcdefg"]
    figure = plots.errors_per_step(runs).figure
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = sorted(
        (text.get_window_extent() for text in axes.texts if text.get_text().endswith("correct")),
        key=lambda b: b.y0,
    )
    assert len(boxes) == 7
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(boxes))
    assert all(box.x0 > axes.bbox.x1 and box.x1 < figure.bbox.x1 for box in boxes)


def test_variants_of_one_role_have_lines_of_their_own():
    timed = [FIXED.model_copy(update={"shape": {"batch_size": size}}) for size in (1, 2, 4)]
    others = [each.model_copy(update={"variant": "other"}) for each in timed]
    for plot in (
        plots.errors_per_step([FIXED, run("other", errors=(0.0, 0.1))]),
        plots.latency(timed + others),
    ):
        (axes,) = plot.figure.axes
        lines = [line for line in axes.lines if line.get_transform() == axes.transData]
        styles = [line.get_linestyle() for line in lines if line.get_linestyle() not in ("None", "")]
        assert len(set(styles)) == len(styles) == 2


def test_latency_plot_gives_no_speed_to_a_wrong_answer():
    sizes = {
        size: run(batch_size=size, latency_ms=Latency(median=size, p20=size / 2, p80=size))
        for size in (1, 4, 8)
    }
    (axes,) = plots.latency([*sizes.values(), WRONG]).figure.axes
    assert words(axes) == {"forced_launch\n8 ms at 8", "zero_mapping\nwrong, so no speed"}
    (drawn,) = [
        line for line in axes.lines if line.get_transform() == axes.transData and len(line.get_ydata())
    ]
    assert list(drawn.get_ydata()) == [1, 4, 8] and drawn.get_linestyle() == "-"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "4", "8"]


def test_two_sizes_make_no_line():
    two = [run(batch_size=size, latency_ms=Latency(median=1, p20=1, p80=1)) for size in (4, 8)]
    (axes,) = plots.latency(two).figure.axes
    drawn = [line for line in axes.lines if line.get_transform() == axes.transData]
    assert {line.get_linestyle() for line in drawn} <= {"None", ""}


def test_a_latency_plot_without_runs_says_so_and_warns_of_nothing(recwarn):
    plot = plots.latency([], recorded=True)
    assert plot.figure.get_supxlabel() == "no runs" and plot.svg() and not recwarn.list


def test_marks_stand_for_every_variant_and_length():
    plot = plots.errors_by_length(
        {"a": {"short": 0.1, "long": 0.2}, "b": {"short": 0.0, "long": 0.3}}, "emulated"
    )
    (axes,) = plot.figure.axes
    (_, a), (_, (zero, b)) = points(axes)
    assert a == [0.1, 0.2] and zero < 1e-8 and b == 0.3
    assert repr(plot) == "Marks: relative error for short, long; variants a, b."


def test_a_threshold_fails_as_often_as_it_is_missed():
    (axes,) = plots.flake_rates([1, 2], total=2).figure.axes
    any_of_two, both = (line.get_ydata() for line in axes.get_lines())
    for p, one, two in zip(axes.get_lines()[0].get_xdata(), any_of_two, both, strict=True):
        assert (one, two) == (pytest.approx((1 - p) ** 2, abs=1e-9), pytest.approx(1 - p**2, abs=1e-9))


def test_a_plot_is_a_picture_with_words_that_do_not_move(displayed):
    plot = plots.errors_per_step([FIXED, WRONG])
    assert plot.svg().startswith("<svg ") and f'aria-label="{plot.alt}"' in plot.svg()
    plot._ipython_display_()
    assert displayed[0][0]["image/svg+xml"] == plot.svg()
    assert displayed[0][0]["text/plain"] == plot.alt
    assert repr(plot) == (
        "Line plot: relative error of the logits in each step, for forced_launch correct, zero_mapping wrong."
    )


def before(x):
    """Same."""
    return x < 1


def after(x):
    """Same."""
    return x < 2


def test_diff_holds_the_lines_that_differ_and_escapes_them():
    difference = source.diff(before, after)
    changed = [line for line in difference.lines if line[0] in "+-"]
    assert changed == [
        "--- before",
        "+++ after",
        "-def before(x):",
        "+def after(x):",
        "-    return x < 1",
        "+    return x < 2",
    ]
    assert (
        "x &lt; 2" in difference._repr_html_() and repr(difference).count("\n") == len(difference.lines) - 1
    )
    assert repr(source.diff(before, before)) == "no difference"


def test_lines_that_one_side_alone_has_are_bold_where_no_colour_is():
    shown = source.side_by_side(before, after, ("yours", "ours"))._repr_html_()
    assert re.findall(r'<b class="(\w+)">    (.+?)</b>', shown) == [
        ("removed", "return x &lt; 1"),
        ("added", "return x &lt; 2"),
    ]


def test_report_is_one_file_that_needs_no_network(tmp_path):
    report.write(tmp_path / "deep" / "report.html", [FIXED, WRONG])
    page = (tmp_path / "deep" / "report.html").read_text()
    assert 'data-verdict="wrong"' in page and page.count("<svg ") >= 2
    names = page.replace("http://www.w3.org/2000/svg", "")  # nothing is fetched from there
    assert not re.search(r'(src|href)="(?!data:|#)', page) and "://" not in names
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert page.count(looks.stylesheet()) == 1 == page.count("<style")
    assert page.count("<svg ") == page.count('aria-label="Line plot: ') and "<img" not in page
    assert "run here, now" in page and "Command: mrv2lab run" in page


STALE = {
    "provenance": PROVENANCE.model_copy(update={"sources": {"runner/gone.py": "0", "kernels/gone.py": "0"}})
}
CHANGED = "2026-01-02; the code has changed since"
OLD = run(latency_ms=FIXED.latency_ms, **STALE)
SHOWN = {
    "verdicts": lambda: VerdictTable([OLD], recorded=True),
    "speeds": lambda: SpeedTable([OLD], relative_to="forced_launch"),
    "crashes": lambda: CrashTable([run(verdict="crash", errors=(), step_modes=[], **STALE)]),
    "matrix": lambda: matrix.DetectionTable(matrix.load().model_copy(update=STALE), recorded=True),
    "survey": lambda: survey.SurveyTable(survey.load().model_copy(update=STALE), recorded=True),
    "history": lambda: history.load().model_copy(update=STALE).label,
    "errors": lambda: plots.errors_per_step([OLD], recorded=True).figure.get_supxlabel().replace("\n", " "),
    "latency": lambda: plots.latency([OLD], recorded=True).figure.get_supxlabel().replace("\n", " "),
}


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
def test_where_a_recorded_number_is_shown_it_is_said_that_the_code_has_changed_since(shown):
    assert CHANGED in str(shown())
    if hasattr(shown(), "_repr_html_"):
        assert CHANGED in shown()._repr_html_()


def test_what_runs_now_has_no_code_that_has_changed_since():
    for text in (repr(VerdictTable([OLD])), plots.errors_per_step([OLD]).figure.get_supxlabel()):
        assert "since" not in text


def test_report_says_when_a_number_was_recorded_and_by_what_code(tmp_path):
    report.write(tmp_path / "r.html", [], [Record(provenance=STALE["provenance"], runs=[FIXED])])
    page = (tmp_path / "r.html").read_text()
    assert page.count(CHANGED) == 2  # below the table, and beside the command
    report.write(tmp_path / "r.html", [], [Record(provenance=PROVENANCE, runs=[FIXED])])
    page = (tmp_path / "r.html").read_text()
    assert "lora_short_circuit: recorded, rung cuda" in page and "run here" not in page


def test_a_finding_table_holds_the_cause_and_no_addresses():
    cause = Finding("moved-address", "w.x", "at 0x55a4 now", Place(__file__, 3, "step"))
    after = Finding("lost-kernel", "<kernel>", "1 eagerly, 0 in the graph")
    reports = [AuditReport("step", "cuda", (cause, after), 7), AuditReport("fixed", "cuda", (), 2)]
    lines = [re.split("  +", line) for line in repr(FindingTable(reports)).splitlines()]
    _, found, silent = lines
    assert found == ["step", "moved-address", "w.x", "import itertools", "tests/test_show.py:3 in step"]
    assert silent == ["fixed", "nothing"]
    assert "&lt;kernel&gt;" in FindingTable([AuditReport("s", "cuda", (after,), 1)])._repr_html_()
