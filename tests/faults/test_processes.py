"""Processes that are ended from outside, hang or grow: said soon, and nothing is left behind."""

import json
import os
import shutil

import pytest

from mrv2lab import forks, results

CAPTURE = "mrv2lab.graphs.emulated:EmulatedSession.__enter__"
REPLAY = "mrv2lab.graphs.emulated:EmulatedGraph._replay"
PHASES = {
    "before its first run": "mrv2lab.cases.base:Case.run_all",
    "at a capture": CAPTURE,
    "at a replay": REPLAY,
    "before it writes its record": "mrv2lab.results:Document.save",
    "while it writes its record": "pathlib:Path.replace",
}
KEPT = ("--save", "--data", "results")
PAIR = ("run", "pp_eager_fallback", "--variant", "persistent_buffers")
STAGES = "mrv2lab.runner.pp_executor:_wait"
GRID = """
case = ["breakable_graph"]
variant = ["full_graph"]
[shape]
batch_size = [1, 2]
num_layers = [1]
"""


def records(faults):
    folder = faults.folder / "results" / "breakable_graph"
    return {file.name: results.load(file).provenance.date for file in folder.glob("*.json")}, [
        *folder.iterdir()
    ]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("what, status", [("term", -15), ("kill", -9)])
def test_a_run_that_is_ended_loses_no_record(faults, kept, phase, what, status, record_property):
    shutil.copytree(kept / "results", faults.folder / "results")
    before, _ = records(faults)
    told = faults.run(
        f"its process gets SIG{what.upper()} {phase}", *faults.one, *KEPT, at=PHASES[phase], what=what
    )
    record_property("records lost", len(before.items() - records(faults)[0].items()))
    assert told.status == status and told.left == []
    assert records(faults)[0] == before
    begun = [part for part in records(faults)[1] if part.name.startswith(".")]
    assert len(begun) == (
        "while" in phase
    )  # a part of a file, which whoever writes there an hour later removes
    for part in begun:
        os.utime(part, (0, 0))
        assert faults.run(None, *faults.one, *KEPT).status == 0
    assert len(records(faults)[1]) == 1


@pytest.fixture(scope="module")
def kept(tmp_path_factory, make_faults):
    """A folder with the record of an earlier run, and the number of lines that were run for it."""
    with make_faults(tmp_path_factory.mktemp("kept")) as faults:
        assert faults.run(None, *faults.one, *KEPT, LINE="0").status == 0
        return faults.folder


@pytest.mark.parametrize(
    "what, told",
    [("kill", "by SIGKILL"), ("grow", "with status 1")],
)
def test_a_cell_of_a_sweep_that_dies_is_named_and_the_others_are_run(faults, what, told):
    (faults.folder / "grid.toml").write_text(GRID)
    sweep = ("sweep", "grid.toml", "--to", "cells", "--json")
    told_by = "it was ended: " if what == "grow" else ""
    lost = faults.run(
        f"a process of a sweep: {what}", *sweep, at=REPLAY, what=what, tells=told_by, MRV2LAB_MEMORY_GIB="1"
    )
    assert f"its process ended {told}" in lost.err and lost.left == []
    assert (what == "grow") == ("of host memory, and may have 1.0" in lost.err)
    assert len([*(faults.folder / "cells").glob("*.json")]) == 1


@pytest.mark.parametrize(
    "what, told",
    [
        ("kill", "ended with status -9"),
        ("flood", "it was ended: it had said"),
        ("grow", "GiB of host memory, and may have 1.0"),
        ("memory", "MemoryError"),
        ("interrupt", "KeyboardInterrupt"),
    ],
)
def test_a_stage_that_dies_is_told_by_its_last_words(faults, what, told):
    lost = faults.run(
        f"a stage of a pipeline: {what}",
        *PAIR,
        at=REPLAY,
        what=what,
        tells="failed: ",
        MRV2LAB_MEMORY_GIB="1",
    )
    assert lost.status == 1 and "StageDied: stage" in lost.out and told in lost.out and lost.left == []


def test_a_stage_that_waits_for_ever_is_ended_by_the_clock(faults):
    """Sooner than otherwise: that takes five minutes."""
    settings, limit_s = {"mrv2lab.runner.pp_executor": {"PATIENCE": 0.2}}, 12
    begins = "mrv2lab.runner.pp_executor:main"
    lost = faults.run(None, *PAIR, at=begins, what="stop", MRV2LAB_SETTINGS=json.dumps(settings))
    [told] = [line for line in lost.out.splitlines() if "failed: stage" in line or "failed: CutOff" in line]
    seconds = max(0.0, lost.seconds - limit_s)
    fault = "a stage of a pipeline: stop"
    faults.row(fault, told, status=lost.status, seconds=seconds, left=lost.left)
    assert lost.status == 1 and lost.left == []
    assert f" of 2 had no result after {limit_s} s and was ended" in told


@pytest.mark.parametrize("what, status", [("kill", -9), ("term", -15), ("interrupt", -2)])
def test_whoever_waits_for_stages_and_dies_takes_them_along(faults, what, status):
    lost = faults.run(f"the process that waits for stages: {what}", *PAIR, at=STAGES, what=what)
    assert lost.status == status and lost.left == []


@pytest.mark.parametrize("share", [0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1])
def test_an_interrupt_at_any_line(faults, kept, share):
    """Of all lines of this package that a run comes to, but for the two that stand around all others."""
    shutil.copytree(kept / "results", faults.folder / "results")
    line = 2 + int(share * (int((kept / "lines").read_text()) - 3))
    told = faults.run(f"Ctrl-C at a line, after {share:.0%} of all", *faults.one, *KEPT, LINE=str(line))
    assert told.left == [] and "Traceback" not in told.err, told.err
    assert told.status == -2
    assert len(records(faults)[0]) == len(records(faults)[1]) == 1


WRITER = """
from mrv2lab import forks, results
from pathlib import Path
kept = results.load(results.DATA / "stale_view" / "source-cpu.json")
for _ in range(100):
    kept.model_copy(update={{"runs": kept.runs[:{number}]}}).save(Path("{path}"))
"""


def test_two_runs_that_write_one_record(faults):
    """Each again and again, and a reader beside them."""
    path, log = faults.folder / "r.json", faults.folder / "log"
    writers = [
        forks.Fork(exec, WRITER.format(number=number, path=path), log=log, modules=["mrv2lab.results"])
        for number in (1, 4)
    ]
    lengths = set()
    while any(writer.status is None for writer in writers):
        if path.exists():
            lengths.add(len(results.load(path).runs))  # whole, whoever has written it
    assert [writer.status for writer in writers] == [0, 0] and lengths == {1, 4}, log.read_text()
    assert [*faults.folder.glob("r*")] == [path]
    faults.row(
        "two processes write one record, 100 times each, and a third reads it", "each time a whole one"
    )
