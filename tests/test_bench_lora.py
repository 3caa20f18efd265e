"""The LoRA kernels' bench: what it calls right, sums up and draws; never how long anything took."""

import pytest
import torch
from typer.testing import CliRunner

from mrv2lab import bench_lora, plots, sources, timed
from mrv2lab.bench_lora import Shape
from mrv2lab.cli import app
from mrv2lab.kernels import lora_fast
from mrv2lab.results import RECORDS, Latency, provenance
from mrv2lab.tables import TimedTable
from mrv2lab.timed import Row, Timed


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(timed, "RUNS", 1)
    monkeypatch.setattr(bench_lora, "_SMALL", [Shape("-", "o", 40, 24, 2, 5, 2, 8, "float16")])
    monkeypatch.setattr(bench_lora, "candidates", lambda op, shape: [lora_fast.Tile(16, 16, 16)])


def row(op="shrink", tokens=1, fast=1.0, verdict="correct", counts=None, **others):
    ms = {"fast": fast, **others}
    return Row(
        labels={"op": op, "tokens": tokens}, verdict=verdict, counts=counts or {},
        ms={name: Latency(median=number, p20=number, p80=number) for name, number in ms.items()},
    )  # fmt: skip


def made(rows):
    by = provenance(0, uses_gpu=False, made_by=sources.of("emulated", "timed"))
    return Timed(provenance=by, what="lora", rung="emulated", rows=rows)


def test_both_kernels_are_right_and_say_their_tile():
    found = list(bench_lora.rows("emulated"))
    assert [(row.labels["op"], row.verdict) for row in found] == [
        ("shrink", "correct"),
        ("expand", "correct"),
    ]
    assert all(list(row.ms) == ["fast", "plain"] and row.labels["tile"] for row in found)


@pytest.mark.parametrize("op", ["shrink", "expand"])
def test_a_kernel_that_does_nothing_is_wrong(op, monkeypatch):
    monkeypatch.setattr(lora_fast, f"lora_{op}", lambda *args: args[0].add_(0))  # some node, so a graph
    # Else what a kernel of another test has left there may be what this one is to write.
    monkeypatch.setattr(torch, "empty_like", lambda of: torch.full_like(of, torch.nan))
    wrong = {row.labels["op"]: row.verdict for row in bench_lora.rows("emulated")}
    assert wrong == {"shrink": "correct", "expand": "correct"} | {op: "wrong"}


def test_each_way_is_timed_with_its_own_kernels(monkeypatch):
    timed_works, in_turn = [], bench_lora.in_turn

    def noted(backend, works):
        timed_works.append(works)
        return in_turn(backend, works)

    monkeypatch.setattr(bench_lora, "in_turn", noted)
    found = list(bench_lora.rows("emulated"))
    assert [list(works) for works in timed_works[1::2]] == [["fast", "plain"]] * 2
    for row, works in zip(found, timed_works[1::2], strict=True):
        labels = {name: [node.label for node in works[name][0].__self__.nodes] for name in ("fast", "plain")}
        assert labels["plain"] != labels["fast"], row.labels["op"]
        assert any("fast" in label for label in labels["fast"]), labels
        assert not any("fast" in label for label in labels["plain"]), labels


def test_shapes_have_no_more_adapters_than_tokens():
    found = bench_lora.shapes()
    assert len(set(found)) == len(found) and all(shape.adapters <= shape.tokens for shape in found)
    assert {shape.dtype for shape in found if shape.rank != 32} == {"bfloat16"}


def test_a_wrong_row_has_no_part_in_a_ratio():
    rows = [row(plain=2.0), row(plain=4.0), row(plain=900.0, verdict="wrong"), row("expand", plain=0.5)]
    table = TimedTable(made(rows)).rows()
    assert table[0] == ["op", "tokens", "rows", "right", "plain / fast"]
    assert table[1:] == [
        ["shrink", "1", "3", "2", "2.00 3.00 4.00"],
        ["expand", "1", "1", "1", "0.50 0.50 0.50"],
    ]


def test_the_figure_leaves_out_what_is_wrong_and_has_no_floor_where_none_was_measured():
    rows = [row(tokens=n, plain=2.0 * n, verdict="wrong" if n == 8 else "correct") for n in (1, 8, 64)]
    (axes,) = plots.lora_kernels(made(rows)).figure.axes
    drawn = next(line for line in axes.lines if line.get_marker() == "D")
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([0, 2], [2.0, 128.0])
    assert "floor" not in plots.lora_kernels(made(rows)).alt
    with_floor = [row(tokens=n, plain=2.0, counts={"floor us": 500.0}) for n in (1, 8)]
    assert "floor 0.5 to 0.5" in plots.lora_kernels(made(with_floor)).alt


def test_a_record_of_the_emulator_can_be_shown(tmp_path):
    file = tmp_path / "timed-lora-emulated.json"
    for words in (
        ["bench", "lora", "--backend", "emulated", "--save", file],
        ["report", file, "--output", tmp_path / "r.html"],
    ):
        assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    assert "no speed of a GPU" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("what", plots.OF_TIMED)
def test_recorded_figures_are_those_of_the_records(what):
    kept = timed.load(RECORDS / f"timed-{what}-cuda.json")
    assert plots.OF_TIMED[what](kept).svg() == (RECORDS / "figures" / f"timed-{what}-cuda.svg").read_text()
