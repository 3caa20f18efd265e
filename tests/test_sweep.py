"""A grid of runs: nothing is run twice and nothing is lost, whoever is killed, however many work on it."""

import fcntl
import os
import re
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from mrv2lab import cli, forks, sweep
from mrv2lab.cli import app
from mrv2lab.errors import BadInput, RecordError
from mrv2lab.results import Record, load
from mrv2lab.sweep import Cell, Grid
from tests.processes import asleep, is_gone, until

SMALL = 'case = ["stale_view"]\nvariant = ["own_copies"]\n[shape]\nbatch_size = [1, 2]\nnum_steps = [9]\n'


@pytest.fixture(autouse=True)
def others_preload(monkeypatch):
    """Forks of this process serve other tests as well, which have said what to import for them."""
    monkeypatch.setattr(type(forks._FORKS), "set_forkserver_preload", lambda self, names: None)


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(SMALL)
    return path


def begun(folder):
    """How often each cell was begun."""
    return {claim.name: len(claim.read_text().split()) for claim in (folder / ".claims").iterdir()}


def records(folder):
    return {path.name: load(path).runs[0] for path in folder.glob("*.json")}


def test_a_grid_is_every_combination_that_a_case_has():
    grid = Grid(case=("stale_view", "lora_frozen_grid"), shape={"rank": (8, 16), "batch_size": (2,)})
    shapes = {(cell.case, *cell.shape.items()) for cell in grid.cells()}
    assert shapes == {
        ("stale_view", ("batch_size", 2)),
        ("lora_frozen_grid", ("rank", 8), ("batch_size", 2)),
        ("lora_frozen_grid", ("rank", 16), ("batch_size", 2)),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("case = [", "grid.toml: "),
        ("cases = []", "grid.toml: no grid: cases: no such key"),
        ("case = 3", r'grid.toml: no grid: case: a list is needed, like \["name"\] or \[1, 2\]'),
        ("shape = 3", "grid.toml: no grid: shape: a table of names and values is needed"),
        ("[shape]\nrank = ['a']", r"grid.toml: no grid: shape.rank.0: Input should be a valid integer"),
        ('case = ["stale"]', "stale_view"),
        ('variant = ["egaer"]', "eager"),
        ("[shape]\nbatch_sise = [1]", "batch_size"),
        ("[shape]\nbatch_size = [0]", "out of range"),
    ],
)
def test_a_bad_grid_is_told_in_one_line(tmp_path, text, told):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(BadInput, match=told) as error:
        Grid.read(tmp_path / "grid.toml").cells()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("case = []", "grid.toml: case: names nothing; without that line all are meant"),
        ("rung = []", "grid.toml: rung: names nothing"),
        ("[shape]\nrank = []", "grid.toml: shape.rank: no number; without that line it is what the case has"),
        ("cases = [1]", "cases: no such key; possible: case, variant, rung, and what belongs below [shape]"),
        ("[shape]\nbatch_size = [16]", "grid.toml: batch_size=16 is out of range"),
    ],
)
def test_what_is_wrong_with_a_grid_is_told_with_its_name(tmp_path, text, told):
    (tmp_path / "grid.toml").write_text(text)
    result = CliRunner().invoke(app, command(tmp_path / "grid.toml", tmp_path / "runs")[1:])
    assert result.exit_code == 2 or isinstance(result.exception, BadInput)
    assert told in result.stderr + str(result.exception)


def test_what_was_there_is_told_and_each_size_has_its_verdict(grid, tmp_path, monkeypatch):
    grid.write_text('case = ["stale_view"]\nvariant = ["eager"]\n[shape]\nbatch_size = [1, 2]')
    asked, folder = command(grid, tmp_path / "runs")[1:], tmp_path / "runs"
    assert "already" not in CliRunner().invoke(app, asked).stderr
    again = CliRunner().invoke(app, asked)
    assert f"2 of 2 runs lay in {folder} already" in again.stderr and "(batch" not in again.stdout
    [small, large] = (one.kept(folder) for one in Grid.read(grid).cells())
    runs = [small, large.model_copy(update={"verdict": "wrong"})]
    assert cli._verdicts(runs) == f"{small.verdict} (batch_size 1); wrong (batch_size 2)"
    assert f"mrv2lab report {folder}" in again.stderr
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    (folder / "mine.json").write_text("{}")
    told = CliRunner().invoke(
        app, ["report", str(folder), "--output", str(page), "--figures", str(figures)], env={"COLUMNS": "300"}
    )
    assert told.exit_code == 0 and f"left out: {folder}/mine.json: no results file" in told.stderr
    assert page.read_text().count(": recorded, rung ") == 2  # contents, and a section
    assert page.read_text().count("<figcaption>errors: batch size 1") == 1
    assert len(list(figures.iterdir())) == told.stderr.count(f"wrote {figures}") == 1
    alone = CliRunner().invoke(app, ["report", str(folder / "mine.json"), "--output", str(page)])
    assert "mine.json: no results file" in f"{alone.stderr}{alone.exception}"
    both = CliRunner().invoke(app, ["report", str(folder / "mine.json"), str(folder), "--output", str(page)])
    assert both.exit_code != 0  # a file that is named is not left out


def test_cells_of_an_engine_need_its_gpu_and_hang_on_its_version(monkeypatch):
    cell = {"case": "stale_view", "variant": "eager", "shape": {}}
    assert [Cell(rung=rung, **cell).uses_gpu for rung in ("vllm", "cuda", "source", "emulated")] == [
        True,
        True,
        False,
        False,
    ]
    before, ask = Cell(rung="vllm", **cell).file, sweep.version_or_none
    for package in ("torch", "triton", "vllm"):
        monkeypatch.setattr(
            sweep, "version_or_none", lambda name, p=package: "9.9" if name == p else ask(name)
        )
        assert Cell(rung="vllm", **cell).file != before


def test_a_folder_without_results_is_told(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert f"no results files in {tmp_path}" in result.stderr + str(result.exception)


def test_what_changes_a_result_changes_its_name(monkeypatch):
    def names():
        return Cell(case="stale_view", variant="eager", rung="emulated", shape={"batch_size": 2}).file

    first = names()
    assert first == names()
    assert first != Cell(case="stale_view", variant="eager", rung="emulated", shape={"batch_size": 1}).file
    monkeypatch.setattr(sweep.sources, "of_run", lambda case, rung: {"runner/model.py": "another"})
    assert first != names()


def command(grid, folder, *more):
    return ["mrv2lab", "sweep", str(grid), "--to", str(folder), *more]


def test_killed_and_resumed_by_two_at_once_it_loses_nothing_and_repeats_nothing(
    grid, tmp_path, forked_module
):
    folder = tmp_path / "runs"
    killed, _ = forked_module.begin(command(grid, folder, "--workers", "1"), os.environ)
    deadline = time.monotonic() + 120
    while not (folder / ".claims").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    killed.join()
    both = [forked_module.begin(command(grid, folder, "--workers", "1", "--json"), os.environ) for _ in "ab"]
    for one, _ in both:
        one.join(300)
    assert [one.exitcode for one, _ in both] == [0, 0]
    told = [output.read_bytes() for _, (output, _) in both]
    runs = records(folder)
    assert len(runs) == 2 and set(begun(folder)) == set(runs)
    assert set(begun(folder).values()) == {1}  # what the killed one had begun, its process has ended
    assert {run.verdict for run in runs.values()} == {"wrong"}
    assert told[0].count(b'"variant"') == told[1].count(b'"variant"') == 2


def test_shards_are_apart_and_together_whole(grid, tmp_path):
    cells = Grid.read(grid).cells()
    for i in (1, 2):
        result = CliRunner().invoke(app, command(grid, tmp_path / "runs", "--shard", f"{i}/2")[1:])
        assert result.exit_code == 0, result.output
        assert len(records(tmp_path / "runs")) == i * len(cells) // 2
    assert set(begun(tmp_path / "runs").values()) == {1}


def test_what_ctrl_c_leaves_is_told(grid, tmp_path, monkeypatch):
    def cut_off(cells, folder, **how):
        folder.mkdir(exist_ok=True)
        (folder / cells[1].file).write_text("{}")
        yield cells[0], "somebody died"
        yield cells[0], "and somebody else"
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "sweep", cut_off)
    told = CliRunner().invoke(app, command(grid, tmp_path / "runs")[1:])
    number = len(Grid.read(grid).cells())
    assert f"1 of {number} runs lie in {tmp_path / 'runs'}; asked again, the same command" in told.stderr


def test_a_folder_that_cannot_be_made_is_told_before_the_first_run(grid):
    result = CliRunner().invoke(app, command(grid, grid / "runs")[1:])
    said = f"mrv2lab: {grid}/runs: Not a directory; name a place where you may write\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", said)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "3/3", "1/" + "9" * 5000])
def test_a_bad_shard_is_bad_input(grid, tmp_path, shard):
    result = CliRunner().invoke(app, command(grid, tmp_path, "--shard", shard)[1:])
    assert result.exit_code == 2 or isinstance(result.exception, BadInput)


def test_a_process_that_dies_is_told_and_its_cell_is_run_again(grid, tmp_path, monkeypatch):
    cells = Grid.read(grid).cells()[:1]

    class Dies(forks.Fork):
        def __init__(self, *args, **options):
            super().__init__(os._exit, 9, **options)

    with monkeypatch.context() as patch:
        patch.setattr(forks, "Fork", Dies)
        ((_, told),) = sweep.sweep(cells, tmp_path)
    assert told == "stale_view own_copies {'batch_size': 1, 'num_steps': 9}: its process ended with status 9"
    ((_, run),) = sweep.sweep(cells, tmp_path)
    assert run.verdict == "wrong"


def other(run, times=1, made=(), **fields):
    provenance = run.provenance.model_copy(update=dict(made))
    return Record(provenance=provenance, runs=times * [run.model_copy(update=fields)]).to_json()


@pytest.mark.parametrize(
    "wrong, told",
    [
        (lambda run: other(run)[:200], "no results file of mrv2lab: invalid JSON"),
        (lambda run: other(run, variant="mine"), "holds stale_view mine"),
        (lambda run: other(run, rung="source"), "on source, and not stale_view own_copies"),
        (lambda run: other(run, times=2), "more than one run, or other code or versions"),
        (lambda run: other(run, made={"sources": {}}), "more than one run, or other code or versions"),
        (lambda run: other(run, made={"torch": "1.0"}), "more than one run, or other code or versions"),
        (lambda run: other(run, made={"triton": "1.0"}), "more than one run, or other code or versions"),
        (lambda run: other(run, shape=run.shape | {"batch_size": 2}), "'batch_size': 2"),
        (lambda run: other(run, shape={}), "holds stale_view own_copies {}"),
    ],
)
def test_what_is_no_record_of_a_cell_is_set_aside_and_the_cell_is_run_again(
    grid, tmp_path, capsys, wrong, told
):
    cell, *_ = Grid.read(grid).cells()
    cell.run(tmp_path, True)
    path, kept = tmp_path / cell.file, cell.kept(tmp_path)
    path.write_text(wrong(kept))
    with pytest.raises(RecordError, match=re.escape(told)):
        cell.kept(tmp_path)
    cell.run(tmp_path, True)
    assert cell.kept(tmp_path).errors == kept.errors
    said = capsys.readouterr().err
    assert said.startswith(f"set aside as {cell.file}.damaged-1, and run again: {path}: ") and told in said
    assert (tmp_path / f"{cell.file}.damaged-1").read_text() == wrong(kept)


def test_a_foreign_file_stops_no_sweep(grid, tmp_path):
    cells = Grid.read(grid).cells()
    (tmp_path / cells[0].file).write_text("{")
    told = list(sweep.sweep(cells, tmp_path))
    assert [run.shape["batch_size"] for _, run in told] == [1, 2]


def test_who_waits_for_a_cell_says_so(grid, tmp_path, capsys, monkeypatch):
    cell, *_ = Grid.read(grid).cells()
    locked = []

    def flock(file, how):
        locked.append(how)
        if how & fcntl.LOCK_NB:
            raise BlockingIOError

    monkeypatch.setattr(sweep.fcntl, "flock", flock)
    assert cell.run(tmp_path, False) == "taken" and capsys.readouterr().err == ""
    assert cell.run(tmp_path, True) == "done" and locked[-1] == fcntl.LOCK_EX
    claim = tmp_path / ".claims" / cell.file
    assert f"waiting for another process, which runs {cell} and holds {claim}\n" in capsys.readouterr().err


def test_whoever_leaves_a_sweep_ends_its_cells():
    def sleeps(cell, until):
        forks.apart(subprocess.run, ["sleep", "6000"], outlives=True, until=until)

    with pytest.raises(KeyboardInterrupt), sweep._here(None, 2, None) as each:
        each(sleeps, range(3))
        assert until(lambda: len(asleep(psutil.Process())) == 2)
        begun = asleep(psutil.Process())
        raise KeyboardInterrupt
    assert until(lambda: all(is_gone(one.pid) for one in begun)) and not asleep(psutil.Process())


def test_a_claim_is_no_link_of_somebody_elses(grid, tmp_path):
    cell, *_ = Grid.read(grid).cells()
    theirs = tmp_path / "theirs"
    theirs.write_text("mine")
    (tmp_path / ".claims").mkdir()
    (tmp_path / ".claims" / cell.file).symlink_to(theirs)
    with pytest.raises(OSError, match=r"symbolic links"):
        cell.run(tmp_path, True)
    assert theirs.read_text() == "mine"


# ---- others that spread cells ----


class FakeRay:
    """Runs what Ray is asked to, at once, and keeps how it was asked."""

    def __init__(self):
        self.asked, self.is_up, self.dies = [], None, False

    def init(self, address, log_to_driver, num_cpus=None, include_dashboard=None):
        if (address == "local") != (
            num_cpus is not None
        ):  # without an address Ray looks for another's cluster
            raise ValueError("When connecting to an existing cluster, num_cpus must not be provided.\nMore")
        self.is_up = (address, num_cpus)

    def shutdown(self):
        self.is_up = None

    def remote(self, function):
        def options(**given):
            self.asked.append(given)
            return SimpleNamespace(remote=lambda cell: partial(function, cell))

        return SimpleNamespace(options=options)

    def get(self, task):
        assert self.is_up
        if self.dies:
            raise RuntimeError("The worker died unexpectedly")
        return task()


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", made := FakeRay())
    return made


def test_ray_spreads_cells_and_retries_none(grid, tmp_path, ray):
    cells = Grid.read(grid).cells()
    told = list(sweep.sweep(cells, tmp_path / "runs", workers=2, on="ray"))
    assert [(cell, run.verdict) for cell, run in told] == [(cell, "wrong") for cell in cells]
    assert ray.asked == [{"num_cpus": 1, "num_gpus": 0, "max_retries": 0}] * 2 and ray.is_up is None
    assert set(begun(tmp_path / "runs").values()) == {1}


def test_a_ray_that_does_not_start_is_told_in_one_line(grid, tmp_path, ray, monkeypatch):
    monkeypatch.setattr(ray, "init", partial(ray.init, num_cpus=2))
    with pytest.raises(
        BadInput, match=r"^Ray did not start, or does not answer: When connecting .*provided.$"
    ):
        list(sweep.sweep(Grid.read(grid).cells(), tmp_path, on="ray", address="host:1"))


def test_a_cell_that_uses_a_gpu_asks_ray_for_one(tmp_path, ray):
    ray.dies = True
    cell = Cell(case="stale_view", variant="own_copies", rung="cuda", shape={})
    ((_, told),) = sweep.sweep([cell], tmp_path, on="ray", address="auto")
    assert told == "stale_view own_copies {}: The worker died unexpectedly"
    assert [given["num_gpus"] for given in ray.asked] == [1] and ray.is_up is None


def test_slurm_gets_an_array_of_jobs(grid, tmp_path, monkeypatch):
    given = {}

    class Executor:
        def __init__(self, folder, cluster):
            given.update(folder=folder, cluster=cluster)

        def update_parameters(self, **parameters):
            given.update(parameters)

        def map_array(self, function, cells):
            return [SimpleNamespace(result=partial(function, cell)) for cell in cells]

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=Executor))
    told = sweep.sweep(Grid.read(grid).cells(), tmp_path, workers=3, on="slurm", address="local")
    assert [run.verdict for _, run in told] == ["wrong"] * 2
    assert given == {
        "folder": tmp_path / ".slurm", "cluster": "local",
        "cpus_per_task": 1, "gpus_per_node": 0, "slurm_array_parallelism": 3,
    }  # fmt: skip
    assert (tmp_path / ".slurm").stat().st_mode & 0o777 == 0o700  # pickles are read from there


@pytest.mark.parametrize(
    "on, told",
    [
        ("ray", r"--on ray needs the library ray: pip install 'mrv2lab\[ray\]'"),
        ("slurm", r"--on slurm needs the library submitit: pip install 'mrv2lab\[slurm\]'"),
        ("slrum", "did you mean 'slurm'"),
    ],
)
def test_who_spreads_cells_must_be_there(grid, tmp_path, monkeypatch, on, told):
    for library in ("ray", "submitit"):
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BadInput, match=told):
        list(sweep.sweep(Grid.read(grid).cells(), tmp_path, on=on))


@pytest.mark.slow
@pytest.mark.parametrize("on, library, address", [("ray", "ray", None), ("slurm", "submitit", "local")])
def test_the_real_ones_give_the_same_table(grid, tmp_path, on, library, address):
    pytest.importorskip(library)
    cells = Grid.read(grid).cells()
    told = sweep.sweep(cells, tmp_path / on, workers=2, on=on, address=address)
    assert [(cell, run.verdict) for cell, run in told] == [(cell, "wrong") for cell in cells]
    assert set(begun(tmp_path / on).values()) == {1}
