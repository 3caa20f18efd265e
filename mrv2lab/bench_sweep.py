"""What a sweep takes as its grid grows: run from nothing, and asked once more when all is there.

The runs are those that take the least CPU, for they end in the crash that their variant states, in an order
of chance; so most of what is timed is the sweep: a process, a lock and a file for each.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from mrv2lab import bench
from mrv2lab.bench import Point
from mrv2lab.results import Run, Verdict
from mrv2lab.sweep import Cell, Grid, sweep

SIZES = (1, 3, 10, 30, 100, 300, 1000)
WORKERS = 2
GRID = Grid(
    case=("stale_view",),
    variant=("kept_pairs", "zeroed_buffers"),
    shape={"batch_size": tuple(range(1, 9)), "num_layers": (1, 2), "num_steps": tuple(range(9, 41))},
)


def points(rung: str) -> Iterator[Point]:
    """Time sweeps of each size, by the clock: their work is done by other processes."""
    cells = GRID.cells()
    random.Random(0).shuffle(cells)
    return (_point(cells[:size]) for size in SIZES)


def _point(cells: list[Cell]) -> Point:
    told: list[list[Run | str]] = []
    with tempfile.TemporaryDirectory(prefix="mrv2lab-bench-") as below:
        places = map(str, count())
        folder = Path(below)

        def begin() -> None:
            nonlocal folder
            folder = Path(below, next(places))

        def ask() -> None:
            told.append([run for _, run in sweep(cells, folder, workers=WORKERS)])

        ms = {
            "run": bench.timed("emulated", ask, before=begin, clock=time.perf_counter),
            "asked again": bench.timed("emulated", ask, clock=time.perf_counter),
        }
        are_once = all(is_once(cells, place) for place in Path(below).iterdir())
    are_runs = all(isinstance(run, Run) and run.as_expected for runs in told for run in runs)
    verdict: Verdict = "correct" if are_once and are_runs else "wrong"
    return Point(chain="runs", num_nodes=len(cells), verdict=verdict, ms=ms)


def is_once(cells: list[Cell], folder: Path) -> bool:
    """Whether every run has been begun by one process alone, and has left its file."""
    begun = [(folder / ".claims" / cell.file).read_text().splitlines() for cell in cells]
    files = {path.name for path in folder.glob("*.json")}
    return all(len(lines) == 1 for lines in begun) and files == {cell.file for cell in cells}
