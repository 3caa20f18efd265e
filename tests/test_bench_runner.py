"""The decode step timed one way and another: what is judged, counted and drawn, never how long it took."""

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mrv2lab import bench_runner, plots, record, report, sources, timed
from mrv2lab.bench_runner import MODES, TRACED, Shape, device_spans, shapes, time_shape, traced
from mrv2lab.cli import app
from mrv2lab.results import Latency, provenance
from mrv2lab.runner import CUDAGraphMode
from mrv2lab.tables import TimedTable
from mrv2lab.timed import Row, Timed

ONE = Shape(1, 0, 8)


@pytest.fixture(autouse=True)
def once(monkeypatch):
    monkeypatch.setattr(timed, "RUNS", 1)


def taken(**ms):
    return {name: Latency(median=value, p20=value, p80=value) for name, value in ms.items()}


def row(mode="full", batch=1, verdict="correct", adapters=0, nodes=2.0, **ms):
    labels = {"mode": mode, "batch": batch, "adapters": adapters}
    times = taken(step=1.0, queued=0.75) | taken(**ms)
    return Row(labels=labels, verdict=verdict, ms=times, counts={"nodes": nodes, "ops": 0.0})


def made(rows, rung="cuda"):
    by = provenance(0, uses_gpu=False, made_by=sources.of("emulated", "verdict"))
    return Timed(provenance=by, what="runner", rung=rung, rows=rows)


# ---- what is timed ----


def test_all_modes_of_each_batch_and_graphs_of_all_adapters():
    rows = [(shape, mode) for shape, modes in shapes("cuda").items() for mode in modes]
    assert len(rows) == len(set(rows)) <= 100
    assert {(s.batch, s.adapters) for s, mode in rows if mode == "eager"} == {
        (batch, n) for batch in (1, 2, 4, 8, 16, 32, 64) for n in (0, 4)
    }
    full = {s for s, mode in rows if mode == "full"}
    assert full >= {Shape(b, n, r) for b in (1, 8, 64) for n in (1, 4, 16) for r in (8, 16, 32, 64)}


@pytest.mark.parametrize("shape", [ONE, Shape(2, 4, 16)])
def test_each_mode_is_right_and_does_as_much(backend, shape):
    rows = [row for row, _ in time_shape(backend, shape, tuple(MODES))]
    assert [(row.labels["mode"], row.verdict) for row in rows] == [(mode, "correct") for mode in MODES]
    assert [row.labels.get("rank") for row in rows] == [shape.rank if shape.adapters else None] * 4
    eager, piecewise, breakable, full = (row.counts for row in rows)
    assert (eager["nodes"], full["ops"]) == (0, 0) and full["nodes"] > piecewise["nodes"] > 0
    assert piecewise == breakable and 0 < piecewise["ops"] < eager["ops"]  # attention, between graphs


def test_graphs_without_kernels_of_adapters_are_wrong_where_requests_have_one(backend, monkeypatch):
    monkeypatch.setattr(bench_runner, "launch_for_nobody", bench_runner.no_adapters)
    rows = [row for row, _ in time_shape(backend, Shape(1, 1, 8), ("eager", "full"))]
    assert [row.verdict for row in rows] == ["correct", "wrong"]


def test_without_adapters_no_kernel_of_theirs_is_in_a_graph(backend):
    nodes = [time_shape(backend, shape, ("full",))[0][0].counts["nodes"] for shape in (ONE, Shape(1, 1, 8))]
    assert nodes[0] < nodes[1]


def test_a_step_that_writes_nothing_is_not_right_by_what_lay_there(backend, monkeypatch):
    run_model, ran = bench_runner.ModelRunner.run_model, []

    def prompts_only(runner, *args):
        ran.append(args)
        return run_model(runner, *args) if len(ran) == 1 else SimpleNamespace(amount=None)

    monkeypatch.setattr(bench_runner.ModelRunner, "run_model", prompts_only)
    step = bench_runner.decode_step(backend, "eager", ONE, warms_up=False)
    assert len(ran) == 2 and not bool(step.logits.isfinite().any())


def test_a_mode_that_makes_no_graph_is_eager(backend, monkeypatch):
    unrouted = CUDAGraphMode.PIECEWISE, lambda model, manager: model
    monkeypatch.setattr(bench_runner, "MODES", MODES | {"piecewise": unrouted})
    [(row, _)] = time_shape(backend, ONE, ("piecewise",))
    assert row.verdict == "eager" and row.counts["nodes"] == 0


def test_modes_of_a_shape_are_timed_in_turn_and_of_steps_in_a_row_one_is_told(monkeypatch):
    """On a GPU, which stands in for itself here: the runners are the emulator's."""
    step = bench_runner.decode_step

    def on_the_emulator(backend, *args, **more):
        return step("emulated", *args, **more)

    monkeypatch.setattr(bench_runner, "decode_step", on_the_emulator)
    asked = {}

    def in_turn(backend, works):
        asked.update(works)
        return {name: taken(step=3.0)["step"] for name in works}

    monkeypatch.setattr(bench_runner, "in_turn", in_turn)
    rows = [row for row, _ in time_shape("cuda", ONE, ("eager", "full"))]
    assert [*asked] == ["eager", "full", "eager queued", "full queued"]
    assert {name: calls for name, (_, calls) in asked.items()} == {
        "eager": 50, "full": 50, "eager queued": 3, "full queued": 3,
    }  # fmt: skip
    assert [row.ms["queued"].median for row in rows] == [3.0 / bench_runner.IN_A_ROW] * 2
    assert [row.ms["step"].median for row in rows] == [3.0] * 2
    called = []
    bench_runner._in_a_row(lambda: called.append(1))()
    assert len(called) == bench_runner.IN_A_ROW


# ---- what CUPTI tells ----


def spans(*took, times=TRACED):
    """Of so many steps, each with kernels that took so many ns, in no order."""
    steps = [(1000 * i + 10 * j, ns) for i in range(times) for j, ns in enumerate(took)]
    return steps[::-1]


def test_a_step_is_its_kernels_gaps_and_launch():
    told = traced(row(step=1.0, queued=0.75), spans(200_000, 300_000))
    assert told.ms["kernels"].median == pytest.approx(0.5)
    numbers = {"traced": 2.0, "over kernels": 2.0, "gaps us": 250.0, "launch us": 250.0}
    assert told.counts == pytest.approx({"nodes": 2.0, "ops": 0.0} | numbers)


def test_each_step_is_a_time_of_its_own():
    slow = [(start, ns * (3 if start < 1000 * 15 else 1)) for start, ns in spans(100_000, 100_000)]
    assert traced(row(), slow).ms["kernels"].median == pytest.approx(0.6)
    assert traced(row(), slow).ms["kernels"].p20 == pytest.approx(0.2)


@pytest.mark.parametrize(
    "seen",
    [[], spans(1), spans(1, 2)[1:], spans(1, 2, times=TRACED // 2)],
    ids=["none", "few", "lost", "half"],
)
def test_what_cupti_has_not_seen_whole_is_no_floor(seen):
    told = traced(row(nodes=2.0), seen)
    assert "kernels" not in told.ms and "over kernels" not in told.counts
    assert told.counts["traced"] == len(seen) / TRACED


def test_what_is_not_right_has_no_ratio():
    told = traced(row(verdict="wrong"), spans(1, 2))
    assert "kernels" in told.ms and told.counts == {"nodes": 2.0, "ops": 0.0, "traced": 2.0}


def test_of_a_profile_what_the_device_did_counts(monkeypatch):
    def event(device, start, ns, is_mark=False):
        return SimpleNamespace(
            device_type=lambda: SimpleNamespace(name=device), start_ns=lambda: start, duration_ns=lambda: ns,
            is_user_annotation=lambda: is_mark,
        )  # fmt: skip

    events = [event("CPU", 0, 9), event("CUDA", 1, 5), event("CUDA", 1, 8, is_mark=True), event("CUDA", 7, 2)]
    done, waited = [], []

    class Profile:
        def __init__(self, activities, acc_events):
            self.profiler = SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events))

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            assert len(done) == len(waited) == TRACED

    monkeypatch.setattr(bench_runner, "profile", Profile)
    monkeypatch.setattr(bench_runner.torch.cuda, "synchronize", lambda: waited.append(1))
    assert device_spans(lambda: done.append(1)) == [(1, 5), (7, 2)]


@pytest.mark.gpu
def test_cupti_sees_every_node_of_a_graph():
    [(row, run)] = time_shape("cuda", ONE, ("full",))
    told = traced(row, device_spans(run))
    assert told.counts["traced"] == told.counts["nodes"] and "kernels" in told.ms


def test_all_is_timed_before_anything_is_traced(monkeypatch):
    done = []

    def time_shape(backend, shape, modes):
        done.append("timed")
        return [(row(mode, shape.batch, adapters=shape.adapters), mode) for mode in modes]

    monkeypatch.setattr(bench_runner, "resolve", lambda backend: "cuda")
    monkeypatch.setattr(bench_runner, "time_shape", time_shape)
    monkeypatch.setattr(bench_runner, "device_spans", lambda run: done.append("traced") or spans(1, 2))
    rows = list(bench_runner.rows("cuda"))
    num_shapes = len(shapes("cuda"))
    assert done == ["timed"] * num_shapes + ["traced"] * len(rows) and all("kernels" in r.ms for r in rows)


# ---- what is shown ----


def two_panels():
    rows = [
        traced(row(mode, batch, adapters=n, step=ms), spans(200_000, 300_000))
        for n in (0, 4)
        for mode, ms in (("eager", 4.0), ("full", 1.0))
        for batch in (1, 2, 4)
    ]
    rows[5] = row("full", 4, "wrong", kernels=0.5)  # the last of the first panel
    return made([*rows, row("full", 1, adapters=16)])


def test_what_is_not_right_is_hollow_and_on_no_line():
    plot = plots.decode_steps(two_panels())
    without, with_adapters = plot.figure.axes  # none for 16, of which there is one mode
    assert [axes.get_title() for axes in plot.figure.axes] == ["no adapters", "4 adapters, rank None"]
    lines = {(tuple(line.get_xdata()), line.get_linestyle()): line for line in without.lines}
    assert lines[(0, 1), "-"].get_ydata().tolist() == [1.0, 1.0]
    assert list(lines[(0, 1), ":"].get_ydata()) == pytest.approx([0.5, 0.5])
    assert lines[(2,), "None"].get_markerfacecolor() == "white"
    assert [len(line.get_xdata()) for line in with_adapters.lines if line.get_linestyle() == "-"][:2] == [
        3,
        3,
    ]
    assert "eager 8.0 to 8.0 x kernels" in plot.alt and "full 2.0 to 2.0 x kernels" in plot.alt


def test_without_a_right_row_there_is_no_time_and_without_kernels_no_ratio():
    rows = [row("eager", 1), row("full", 1, "wrong")]
    assert "eager 1 ms, full not right." in plots.decode_steps(made(rows, "emulated")).alt


def test_the_command_keeps_what_the_report_draws(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_runner, "shapes", lambda backend: {ONE: ("eager", "full")})
    file, figures = tmp_path / "timed-runner-emulated.json", tmp_path / "figures"
    told = CliRunner().invoke(app, ["bench", "runner", "--backend", "emulated", "--save", str(file)])
    assert told.exit_code == 0 and [line.split()[0] for line in told.stdout.splitlines()[1:3]] == [
        "eager",
        "full",
    ]
    kept = timed.load(file)
    assert repr(TimedTable(kept)) == told.stdout.rstrip()
    found = kept.provenance.sources.keys()
    assert {"bench_runner.py", "runner/model_runner.py", "graphs/work.py"} <= found
    assert not any(name.startswith(("audit/", "cases/")) for name in found)
    words = ["report", file, "--output", tmp_path / "r.html", "--figures", figures]
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    assert [path.name for path in figures.iterdir()] == ["timed-runner-emulated.svg"]
    page = (tmp_path / "r.html").read_text()
    assert "bench runner: recorded, rung emulated" in page and page.count("<svg ") == 1
    assert any(file.match(kind) for kind in record.FIGURED)


def test_a_wrong_step_is_status_1(monkeypatch):
    monkeypatch.setattr(timed, "rows", lambda what, backend: iter([row(verdict="wrong")]))
    assert CliRunner().invoke(app, ["bench", "runner", "--backend", "emulated"]).exit_code == 1


def test_of_what_has_no_figure_the_report_has_a_table(tmp_path):
    kept = made([row()]).model_copy(update={"what": "guard"})
    report.write(tmp_path / "r.html", [], [], [], [kept])
    page = (tmp_path / "r.html").read_text()
    assert "bench guard: recorded" in page and "<svg " not in page
    assert report.write_figures(tmp_path, [], [], [kept]) == []
