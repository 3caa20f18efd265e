"""The report of records that nobody would make: a page, or a line, and no traceback."""

import math

import pytest

from mrv2lab import report, results
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
