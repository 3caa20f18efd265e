"""Times of growing graphs: what is counted and judged, never how long anything took."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from mrv2lab import bench, bench_guard, bench_sweep, plots, report, sources, timed
from mrv2lab.bench import Bench, Chain, Launches, Point, exponent, judged
from mrv2lab.cli import app
from mrv2lab.errors import RecordError
from mrv2lab.graphs import CapturedGraph, capture
from mrv2lab.kernels.tiny import add_one_kernel, empty_kernel
from mrv2lab.results import RECORDS, Latency, Provenance, provenance
from mrv2lab.sweep import Grid, sweep
from mrv2lab.tables import BenchTable, EngineTable, TimedTable, checked

CALLS, RUNS = bench._calls, bench.RUNS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bench, "SIZES", {"emulated": (3, 8), "cuda": (3, 8)})
    monkeypatch.setattr(bench, "RUNS", 1)
    monkeypatch.setattr(timed, "RUNS", 1)
    monkeypatch.setattr(bench, "gc", SimpleNamespace(collect=lambda: None))  # looks through all that there is
    monkeypatch.setattr(bench, "_calls", lambda num_nodes: 2)


def invoke(*args):
    return CliRunner().invoke(app, ["bench", *map(str, args)])


def point(num_nodes, ms, verdict="correct", **more):
    times = {"replay": Latency(median=ms, p20=ms / 2, p80=2 * ms)}
    return Point(chain="ops", num_nodes=num_nodes, verdict=verdict, ms=times, **more)


def made(points, rung="emulated", what="growth"):
    by = provenance(0, uses_gpu=False, made_by=sources.of("emulated", "verdict"))
    return Bench(provenance=by, what=what, rung=rung, points=points)


# ---- what is timed ----


def test_growth_times_a_right_graph_of_each_size(backend):
    found = list(bench.growth(backend))
    assert [(p.num_nodes, p.verdict, p.num_findings) for p in found] == [(3, "correct", 0), (8, "correct", 0)]
    assert all(list(p.ms) == ["capture", "replay", "audit"] for p in found)


def test_a_replay_that_is_timed_is_one(monkeypatch):
    """With one run that counts and two calls in it: the one before that does not count is timed alike."""
    replays, replay = [], CapturedGraph.replay
    monkeypatch.setattr(CapturedGraph, "replay", lambda graph: replays.append(graph) or replay(graph))
    monkeypatch.setattr(bench, "audit", lambda *_, **__: SimpleNamespace(findings=()))
    monkeypatch.setattr(bench, "judged", lambda *_: "correct")
    bench._growth("emulated", 3)
    assert len(replays) == 2 * 2


def test_bands_are_drawn():
    wide = Latency(median=1.0, p20=0.1, p80=10.0)
    points = [point(10, 1.0).model_copy(update={"ms": {"replay": wide}}), point(100, 2.0)]
    narrow = plots.growing(made([point(10, 1.0), point(100, 2.0)]))
    assert narrow.svg() != plots.growing(made(points)).svg()


def test_the_floor_is_a_chain_of_each_kernel(backend):
    found, on_gpu = list(bench.floor(backend)), backend == "cuda"
    chains = ["empty", "add one"]
    if on_gpu and torch.cuda.get_device_capability() >= (9, 0):
        chains.append("add one, early")
    assert [(p.chain, p.num_nodes) for p in found] == [(chain, n) for chain in chains for n in (3, 8)]
    assert {p.verdict for p in found} == {"correct"}
    names = ["eager", "instantiate", "replay"] if on_gpu else ["eager", "replay"]
    assert all(list(p.ms) == names and (p.device_bytes is not None) == on_gpu for p in found)


@pytest.mark.parametrize("make", [partial(Launches, add_one_kernel), Chain])
def test_a_graph_that_reads_its_own_copy_of_the_input_is_wrong(backend, device, make):
    ours, copy = make(4, device), make(4, device)
    copy.step()  # compiled before it is captured
    assert judged(ours, capture(copy.step, backend=backend)) == "wrong"
    assert judged(copy, capture(copy.step, backend=backend)) == "correct"


def test_one_wrong_addition_among_many_is_seen(backend, device):
    right = Chain(1_500, device)

    def one_adds_nothing():
        result = right.x
        for number in range(right.num_nodes):
            result = result + (number != 750)
        return result

    assert judged(right, capture(one_adds_nothing, backend=backend)) == "wrong"
    assert judged(right, capture(right.step, backend=backend)) == "correct"


def test_of_empty_kernels_each_must_be_there(backend, device):
    ours, shorter = Launches(empty_kernel, 4, device), Launches(empty_kernel, 3, device)
    shorter.x = ours.x
    ours.step()
    assert judged(ours, capture(shorter.step, backend=backend)) == "wrong"


def test_what_a_time_is_the_median_of(monkeypatch):
    """By a clock of our own: the first run does not count, and calls share the time of a run."""
    monkeypatch.setattr(bench, "RUNS", 5)
    asked, done = iter([0, 9, 10, 11, 20, 22, 30, 33, 40, 44, 50, 55]), []
    monkeypatch.setattr(bench.gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(bench.time, "process_time", lambda: next(asked))
    timed = bench.timed("emulated", lambda: done.append("work"), 2, before=lambda: done.append("before"))
    assert timed.median == 1500 and timed.p20 == pytest.approx(900) and timed.p80 == pytest.approx(2100)
    assert done == ["before", "collect", "work", "work"] * 6


def test_what_ends_soon_is_called_often():
    assert [CALLS(num_nodes) for num_nodes in (3, 10, 1_000, 10_000)] == [333, 100, 1, 1]


# ---- how it grows ----


def test_the_last_decade_says_how_a_time_grows():
    flat = [point(10, 5.0), point(100, 5.0)]
    steep = [point(n, n**1.5) for n in (1_000, 3_000, 10_000)]
    assert exponent(flat + steep, "replay") == pytest.approx(1.5)
    assert exponent(flat + steep[:2], "replay") is None


@pytest.mark.parametrize("hollow", [{"verdict": "wrong"}, {"num_findings": 1}])
def test_what_is_not_right_has_no_part_in_it(hollow):
    right = [point(n, 2 * n) for n in (1_000, 3_000, 10_000)]
    assert exponent([*right, point(5_000, 1e9, **hollow)], "replay") == pytest.approx(1)
    assert exponent([*right, point(100_000, 1e9, **hollow)], "replay") == pytest.approx(1)
    assert exponent([point(p.num_nodes, 1.0, **hollow) for p in right], "replay") is None


def test_it_is_drawn_hollow_and_no_line_goes_through_it():
    points = [point(1_000, 2.0), point(3_000, 6.0), point(5_000, 1.0, "wrong"), point(10_000, 20.0)]
    plot = plots.growing(made(points))
    (axes,) = plot.figure.axes
    lines = {tuple(line.get_xdata()): line for line in axes.lines}
    assert lines[1_000, 3_000, 10_000].get_linestyle() == "-"
    hollow = lines[5_000,]
    assert hollow.get_linestyle() == "None" and hollow.get_markerfacecolor() == "white"
    assert lines[1_000, 3_000, 10_000].get_markerfacecolor() != "white"
    assert "replay n^1.00 in the end" in plot.alt
    assert "recorded, CPU time of the emulator, no speed of a GPU: CPU, torch" in plot.figure.get_supxlabel()
    assert "not right" in plots.growing(made([point(10, 1.0, "wrong")])).alt


def test_the_table_tells_how_it_grows_and_what_an_audit_said():
    table = BenchTable(made([point(n, n / 1000, num_findings=int(n == 10)) for n in (10, 20, 50, 100)]))
    rows = [" ".join(row) for row in table.rows()]
    assert rows[1:] == [
        "ops 10 correct, 1 found 0.0100 1.00 -",
        *("ops 20 correct 0.0200 1.00 -", "ops 50 correct 0.0500 1.00 -", "ops 100 correct 0.100 1.00 -"),
        "ops grows as  n^1.00  ",
    ]
    assert repr(table).splitlines()[-1] == "CPU time of the emulator, no speed of a GPU"
    on_gpu = made([point(10, 1.0, device_bytes=640)], rung="cuda")
    assert BenchTable(on_gpu).rows()[1][-1] == "64" and "times of a GPU" in repr(BenchTable(on_gpu))


# ---- the commands ----


def test_without_a_gpu_the_floor_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    told = invoke("floor")
    assert told.exit_code == 2
    words = "mrv2lab: bench floor times launches on a GPU, and this machine lacks an NVIDIA GPU\n"
    assert (told.stdout, told.stderr) == ("", words)


def test_growth_is_kept_and_drawn(tmp_path, monkeypatch):
    file, figures = tmp_path / "bench-growth.json", tmp_path / "figures"
    told = invoke("growth", "--backend", "emulated", "--json", "--save", file)
    assert told.exit_code == 0
    kept = bench.load(file)
    assert [p["num_nodes"] for p in json.loads(told.stdout)["points"]] == [3, 8]
    assert (kept.what, kept.rung) == ("growth", "emulated")
    assert {"bench.py", "audit/driver.py", "graphs/emulated.py"} <= kept.provenance.sources.keys()
    assert "graphs/cuda.py" not in kept.provenance.sources
    words = ["report", file, "--output", tmp_path / "r.html", "--figures", figures]
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 0
    assert [path.name for path in figures.iterdir()] == ["bench-growth-emulated.svg"]
    page = (tmp_path / "r.html").read_text()
    assert "bench growth: recorded, rung emulated" in page and page.count("<svg ") == 1
    with pytest.raises(RecordError, match="make it with mrv2lab bench"):
        bench.load(tmp_path / "r.html")


def test_only_graphs_up_to_a_size_are_timed():
    told = invoke("growth", "--backend", "emulated", "--max-nodes", "10", "--json")
    assert [p["num_nodes"] for p in json.loads(told.stdout)["points"]] == [3, 8]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "SIZES", {"emulated": (3, 8, 30)})
        told = invoke("growth", "--backend", "emulated", "--max-nodes", "10", "--json")
        assert [p["num_nodes"] for p in json.loads(told.stdout)["points"]] == [3, 8]
        assert bench.SIZES["emulated"] == (3, 8, 30)


def test_one_audit_that_finds_something_among_several_is_told(monkeypatch):
    reports = iter([[], ["found"]])
    monkeypatch.setattr(bench, "audit", lambda step, **options: SimpleNamespace(findings=next(reports)))
    assert bench._growth("emulated", 3).num_findings == 1


def test_a_median_is_of_five_runs():
    assert RUNS == 5


def test_growth_that_contradicts_itself_is_not_shown():
    ms = {name: Latency(median=2.0, p20=1.0, p80=3.0) for name in ("capture", "replay", "audit")}
    right = point(10, 1.0).model_copy(update={"ms": ms})
    for path in RECORDS.glob("bench-*.json"):
        checked(bench.load(path))
    checked(made([right]))
    for points, told in (
        ([right, right], "two such rows"),
        ([right, point(30, 1.0)], "without capture ms"),
        ([right.model_copy(update={"ms": ms | {"replay": Latency(median=1, p20=2, p80=3)}})], "bounds"),
    ):
        with pytest.raises(RecordError, match=told):
            checked(made(points))
    with pytest.raises(RecordError, match="on no GPU"):
        checked(made([right], rung="cuda"))


def test_a_graph_that_is_not_right_is_status_1(monkeypatch):
    wrong = {"growth": lambda backend: iter([point(10, 1.0, "wrong")])}
    monkeypatch.setattr(bench, "MEASURED", wrong)
    told = invoke("growth", "--backend", "emulated")
    assert told.exit_code == 1 and "wrong" in told.stdout


def test_a_change_of_the_audit_makes_no_floor_stale():
    assert "audit/driver.py" not in sources.of("cuda", "bench", besides=("audit",))


# ---- a sweep ----


@pytest.fixture
def small_sweeps(monkeypatch):
    monkeypatch.setattr(bench_sweep, "SIZES", (2,))
    shape = {"num_layers": (1,), "num_steps": (9,), "batch_size": (1,)}
    few = Grid(case=("stale_view",), variant=("one_state", "kept_pairs"), shape=shape)
    monkeypatch.setattr(bench_sweep, "GRID", few)


@pytest.mark.usefixtures("small_sweeps")
def test_a_sweep_is_timed_from_nothing_and_when_all_is_there(tmp_path):
    told = invoke("sweep", "--save", tmp_path / "bench-sweep.json")
    head, row, *_ = (line.split() for line in told.stdout.splitlines())
    assert told.exit_code == 0 and " ".join(head[:3] + head[-6:]) == "chain runs verdict us a run bytes a run"
    assert row[:3] == ["runs", "2", "correct"]
    assert told.stdout.splitlines()[-1] == "by the clock, two runs at once"
    kept = checked(bench.load(tmp_path / "bench-sweep.json"))
    assert "sweep.py" in kept.provenance.sources and "audit/driver.py" not in kept.provenance.sources
    assert "milliseconds over runs of a sweep" in plots.growing(kept).alt


@pytest.mark.usefixtures("small_sweeps")
def test_each_sweep_from_nothing_has_a_folder_of_its_own(monkeypatch):
    asked = []

    def noted(cells, folder, workers):
        asked.append(folder)
        yield from sweep(cells, folder, workers=workers)

    monkeypatch.setattr(bench_sweep, "sweep", noted)
    (found,) = bench_sweep.points("emulated")
    assert found.verdict == "correct" and len(asked) == 4
    assert len({*asked[:2]}) == 2 and {*asked[2:]} == {asked[1]}


@pytest.mark.usefixtures("small_sweeps")
def test_a_sweep_that_begins_a_run_twice_is_wrong(monkeypatch):
    def begun_again(cells, folder, workers):
        yield from sweep(cells, folder, workers=workers)
        with open(folder / ".claims" / cells[-1].file, "a") as claim:
            claim.write("1\n")

    monkeypatch.setattr(bench_sweep, "sweep", begun_again)
    assert {found.verdict for found in bench_sweep.points("emulated")} == {"wrong"}


@pytest.mark.usefixtures("small_sweeps")
def test_a_sweep_that_leaves_no_file_is_wrong(monkeypatch):
    def loses_one(cells, folder, workers):
        found = [*sweep(cells, folder, workers=workers)]
        (folder / cells[-1].file).unlink()
        return found

    monkeypatch.setattr(bench_sweep, "sweep", loses_one)
    assert {found.verdict for found in bench_sweep.points("emulated")} == {"wrong"}


@pytest.mark.usefixtures("small_sweeps")
def test_a_sweep_whose_runs_are_not_as_stated_is_wrong(monkeypatch):
    monkeypatch.setattr(bench_sweep, "sweep", lambda *cells, **how: iter([(None, "its process ended")]))
    monkeypatch.setattr(bench_sweep, "is_once", lambda cells, folder: True)
    assert {found.verdict for found in bench_sweep.points("emulated")} == {"wrong"}


# ---- a guard ----


@pytest.mark.usefixtures("nothing_before")
def test_what_a_guard_takes_has_a_verdict(backend):
    price = bench_guard.price(backend, 40)
    assert (price.labels, price.verdict, [*price.ms]) == ({"nodes": 40}, "correct", ["off", "on", "asked"])
    num_values = price.counts["values"]
    assert num_values >= 40 and price.counts["ns a value"] == 1e6 * price.ms["asked"].median / num_values


@pytest.mark.usefixtures("nothing_before")
def test_a_guard_is_timed_beside_a_graph_that_has_none(backend, monkeypatch):
    asked, guards, in_turn = [], [], bench_guard.in_turn

    def noted(backend, works):
        (checks,) = guards[0]._graphs
        with monkeypatch.context() as patched:
            patched.setattr(checks, "is_stale", lambda: asked.append(name) or False)
            for name in ("off", "on"):
                works[name][0]()
        return in_turn(backend, works)

    make = bench_guard.guard
    monkeypatch.setattr(bench_guard, "guard", lambda mode: guards.append(make(mode)) or guards[0])
    monkeypatch.setattr(bench_guard, "in_turn", noted)
    assert bench_guard.price(backend, 4).verdict == "correct" and asked == ["on"]


@pytest.mark.usefixtures("nothing_before")
def test_a_guard_that_tells_nothing_is_wrong(backend, monkeypatch):
    monkeypatch.setattr(bench_guard.StaleCapture, "__str__", lambda self: "something has changed")
    assert bench_guard.price(backend, 4).verdict == "wrong"


@pytest.mark.usefixtures("nothing_before")
def test_the_price_of_a_guard_is_a_table(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_guard, "SIZES", (4, 8))
    told = invoke("guard", "--backend", "emulated", "--save", tmp_path / "guard.json")
    lines = told.stdout.splitlines()
    assert told.exit_code == 0 and len(lines) == 4
    assert lines[0].split()[:2] == ["nodes", "verdict"] and lines[0].endswith("ns a value")
    assert [line.split()[0] for line in lines[1:3]] == ["4", "8"]
    assert lines[3] == "CPU time of the emulator, no speed of a GPU"
    kept = timed.load(tmp_path / "guard.json")
    assert kept.what == "guard" and "graphs/emulated.py" in kept.provenance.sources
    assert repr(TimedTable(kept, recorded=True)).splitlines()[:-1] == lines[:-1]


def test_works_are_timed_in_turn(monkeypatch):
    called = []
    works = {name: (partial(called.append, name), calls) for name, calls in (("a", 2), ("b", 1))}
    ms = timed.in_turn("emulated", works)
    assert called == ["a", "a", "b"] * (timed.RUNS + 1) and [*ms] == ["a", "b"]
    assert timed.latency([3.0, 1.0, 2.0]).median == 2.0


# ---- what is recorded ----


def test_the_recorded_growth_is_right_and_its_figure_is_drawn_from_it(tmp_path, monkeypatch):
    kept = bench.load(RECORDS / "bench-growth.json")
    assert [p.num_nodes for p in kept.points] == [10, 30, 100, 300, 1_000, 3_000, 10_000]
    assert all(p.is_right for p in kept.points)
    monkeypatch.setattr(Provenance, "since", "")  # it is of the day on which the figure was drawn
    (drawn,) = report.write_figures(tmp_path, [], [kept])
    words = plots.growing(kept).alt
    assert words in drawn.read_text() and words in (RECORDS / "figures" / drawn.name).read_text()


@pytest.mark.parametrize("name", ["floor", "growth-cuda", "sweep"])
def test_the_page_shows_what_was_recorded_of_growth(name):
    page = (RECORDS.parent / "docs" / "bench.md").read_text().splitlines()
    recorded = str(BenchTable(bench.load(RECORDS / f"bench-{name}.json"), recorded=True)).splitlines()
    told = [line.rstrip() for line in recorded if line.strip()]
    at = page.index(told[1])
    assert page[at - 1 : page.index("```", at)] == told


@pytest.mark.parametrize(
    "name",
    [
        "guard-cuda", "lora-cuda", "runner-cuda", "engine-vllm", "engine-runners-vllm", "engine-vllm-0.26.0",
        "server-vllm", "stages-vllm",
    ],
)  # fmt: skip
def test_the_page_shows_what_was_recorded(name):
    kept = timed.load(RECORDS / f"timed-{name}.json")
    table = EngineTable(kept, recorded=True) if kept.what == "engine" else TimedTable(kept, recorded=True)
    head, *told = repr(table).splitlines()
    page = (RECORDS.parent / "docs" / "bench.md").read_text().splitlines()
    tables = [page[at + 1 : page.index("```", at)] for at, line in enumerate(page) if line == head]
    shown = next(table for table in tables if table[-1] in told)  # its caption names the day
    assert len(shown) > 3 and shown == [line for line in told if line in shown]
    if name in (
        "guard-cuda",
        "server-vllm",
        "stages-vllm",
    ):  # of the others the page says which rows it shows
        assert shown == told
