"""The report of records that nobody would make: a page, or a line, and no traceback."""

import math

import pytest

from mrv2lab import report, results, timed
from mrv2lab.results import Latency, Record, Run

RUN = Run(case="c", variant="v", role="fixed", rung="cuda", verdict="correct", expected="correct",
          errors=[0.0], step_modes=["graph"], shape={"batch_size": 1})  # fmt: skip
TIMED = {"latency_ms": Latency(median=1, p20=1, p80=1)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "fields",
    [
        {"metrics": {"x": math.inf, "pool_bytes": math.nan, "y": 1e308}},
        {"verdict": "wrong", "errors": [1e308]},
        {"verdict": "wrong", "errors": [math.inf]},
        {"shape": {}, **TIMED},
        {"shape": {"batch_size": -(2**62)}, **TIMED},
        {"latency_ms": Latency(median=5e-324, p20=5e-324, p80=9e11)},
    ],
    ids=str,
)
def test_any_record_that_is_read_is_drawn(fields, tmp_path):
    """Beside one as we make them."""
    runs = [RUN.model_copy(update={"variant": "usual", **TIMED}), RUN.model_copy(update=fields)]
    made = results.provenance(0, uses_gpu=False).model_copy(update={"gpu": "a GPU"})
    Record(provenance=made, runs=runs).save(tmp_path / "r.json")
    report.write(tmp_path / "r.html", [], [results.load(tmp_path / "r.json")])
    assert "usual" in (tmp_path / "r.html").read_text()


def test_a_number_without_end_is_told_as_that():
    told = [report.in_unit("x", value) for value in (math.inf, -math.inf, math.nan, 1e300, 12.0)]
    assert told == ["inf", "-inf", "nan", "1e+300", "12"]


HERE = RUN.model_copy(update={"rung": "emulated"})


def page_of(tmp_path, *records):
    report.write(tmp_path / "page.html", [], records)
    return (tmp_path / "page.html").read_text()


def test_only_runs_that_were_made_alike_share_a_section(tmp_path):
    made = results.provenance(0, uses_gpu=False)
    records = [
        Record(
            provenance=by, runs=[HERE.model_copy(update={"provenance": by, "shape": {"batch_size": size}})]
        )
        for size, by in enumerate([made, made, made.model_copy(update={"command": "another"})], 1)
    ]
    page = page_of(tmp_path, *records)
    assert page.count(": recorded, rung ") == 2 * 2 and page.count("<figcaption>errors: batch size 1") == 1
    assert len(report.write_figures(tmp_path / "figures", records)) == 2


def test_nothing_is_drawn_of_what_was_not_timed(tmp_path):
    made = results.provenance(0, uses_gpu=False)
    runs = [
        HERE.model_copy(update={"provenance": made}),
        HERE.model_copy(update={"provenance": made, **TIMED}),
    ]
    assert [*report._plots(runs[:1], is_recorded=True)] == ["errors"]
    assert [*report._plots(runs, is_recorded=True)] == ["errors", "latency"]


@pytest.mark.parametrize("field", ["case", "vllm"])
def test_no_record_is_a_reason_to_write_elsewhere(tmp_path, field):
    made = results.provenance(0, uses_gpu=False).model_copy(
        update={"gpu": "a GPU", "vllm": "../../elsewhere"}
    )
    run = RUN.model_copy(update={"rung": "vllm", "provenance": made})
    run = run.model_copy(update={"case": "../../elsewhere"} if field == "case" else {})
    [path] = report.write_figures(tmp_path / "a" / "figures", [Record(provenance=made, runs=[run])])
    assert path.parent == tmp_path / "a" / "figures" and path.is_file()


@pytest.mark.parametrize("seconds", [None, 3.0])
def test_what_was_cut_off_is_told(tmp_path, seconds):
    made = results.provenance(0, uses_gpu=False).model_copy(update={"seconds": seconds})
    row = timed.Row(labels={"nodes": 1}, verdict="correct", ms={"off": timed.latency([1.0])})
    kept = timed.Timed(provenance=made, what="guard", rung="emulated", rows=[row])
    report.write(tmp_path / "page.html", [], [], ways=[kept])
    assert ("cut off before its end" in (tmp_path / "page.html").read_text()) is (seconds is None)
