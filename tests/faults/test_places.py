"""Places that are full, cannot be written, have odd names or are not there, and a clock that is set back."""

import re
import time

import pytest

from mrv2lab import results
from mrv2lab.results import Record, Run

PAIR = ("run", "pp_eager_fallback", "--variant", "eager")
SOURCE = ("run", "stale_view", "--rung", "source", "--variant", "own_copies")
NOBODY = "http://127.0.0.1:9"  # where nobody listens


@pytest.mark.parametrize(
    "kept", [("--save", "--data", "small"), ("--report", "small/r.html"), ("--report", "small/new/r.html")]
)
@pytest.mark.parametrize("size, why", [("4k", "No space left on device"), (None, "Read-only file system")])
def test_a_place_for_results_that_takes_none(faults, mounts, kept, size, why):
    small = faults.folder / "small"
    small.mkdir()
    told = faults.run(f"a disk for results: {why}", *faults.one, *kept, mounts=[(small, size)])
    assert told.status == 2 and told.left == []
    assert ("full_graph" in told.out) == (size is not None)  # what was run is told; what is closed, before
    assert told.last.startswith("mrv2lab: small") and ".tmp" not in told.last
    assert told.last.endswith(f"{why}; name a place where you may write")


@pytest.mark.parametrize("size, why", [("4k", "full"), (None, "read-only")])
def test_a_place_for_temporary_files_that_takes_none(faults, mounts, size, why):
    """Of a pipeline, whose stages leave their results there."""
    fault = f"the folder for temporary files is {why}"
    told = faults.run(fault, *PAIR, mounts=[(faults.tmp, size)], tells="failed: ")
    if size:
        died = r"StageDied: stage [01] of 2 ended with status 1: not a word in its log, whose disk is full"
        assert told.status == 1 and re.search(died, told.out)
    else:  # Python looks for another one
        assert told.status == 0, told.out + told.err
    assert told.left == []


def test_a_package_and_a_home_that_cannot_be_written(faults, mounts):
    places = [(results.RECORDS.parent, None), (faults.home, None)]
    told = faults.run("package and home are read-only", *faults.one, mounts=places)
    assert told.status == 0 and told.left == []


def test_spaces_and_letters_of_all_the_world(faults):
    place = faults.folder / "Ordner für Ergebnisse ☂ 結果"
    kept = ("--save", "--data", place, "--report", place / "r é.html")
    told = faults.run("spaces and letters beyond ASCII in a path", *faults.one, *kept)
    [file] = place.glob("breakable_graph/*.json")
    assert told.status == 0 and results.load(file).runs and (place / "r é.html").exists()
    assert str(faults.folder) not in file.read_text()  # a record says nothing of the machine


@pytest.mark.parametrize(
    "fault, network",
    [
        ("no network", {"PIP_INDEX_URL": f"{NOBODY}/simple", "PIP_EXTRA_INDEX_URL": ""}),
        ("a proxy that is dead", {"PIP_PROXY": NOBODY, "HTTPS_PROXY": NOBODY, "HTTP_PROXY": NOBODY}),
    ],
)
def test_a_release_that_is_out_of_reach(faults, fault, network):
    cache = faults.folder / "cache"
    told = faults.run(fault, *SOURCE, MRV2LAB_CACHE=str(cache), PIP_CONFIG_FILE="/dev/null", **network)
    assert told.status == 2 and told.left == []
    assert "nor the network has vllm 0.23.0; connect, or copy the folder 0.23.0" in told.last
    assert not [*cache.rglob("*.py")]


def test_a_clock_that_was_set_back(faults, monkeypatch):
    run = Run(case="stale_view", variant="eager", role="baseline", rung="emulated", verdict="correct",
              expected="correct", errors=[0.0], step_modes=["eager"])  # fmt: skip
    record, path = (
        Record(provenance=results.provenance(0, uses_gpu=False), runs=[run]),
        faults.folder / "r.json",
    )
    monkeypatch.setattr(time, "time", lambda: 0.0)
    record.save(path)
    assert results.load(path).provenance.seconds == 0
    faults.row("the clock is set back to 1970 before a record is written", "the record is whole; it took 0 s")
