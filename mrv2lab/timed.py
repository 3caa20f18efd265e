"""Tables of what was timed: a row for each way, with the verdict of the same run, times and counts.

Each module named in `MODULES` has `rows(backend)`, which times one row after the other.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from mrv2lab.errors import BadInput
from mrv2lab.results import RECORDS, Kept, Latency, Rung, Strict, Verdict

MODULES = {"guard": "bench_guard", "lora": "bench_lora", "runner": "bench_runner"}
"""What can be timed, as `mrv2lab bench NAME`, and by which module of the package."""

SUMMED = {"lora": ("op", "tokens")}
"""What has too many rows to be printed, and by which labels they are summed up."""

RUNS = 5
"""How often each is timed, after a first time that does not count."""


class Row(Strict):
    """One way. A row that is not right has no part in any ratio."""

    labels: dict[str, str | int]  # size, mode, shape
    verdict: Verdict
    ms: dict[str, Latency]
    counts: dict[str, float] = Field(default={})


class Timed(Kept):
    """All ways, timed on one machine by one command."""

    what: str
    rung: Rung
    rows: list[Row] = Field(min_length=1)


def load(path: Path) -> Timed:
    """Read what was timed. RecordError: not there, damaged, or not such a record."""
    return Timed.read(path, "times", f"make it with mrv2lab bench, below {RECORDS.name}")


def joined(parts: Sequence[Timed]) -> Timed:
    """What was timed in parts, by the same code on machines of one kind; of equal labels the last counts.

    Raises:
        BadInput: in what two parts are not alike.
    """
    first = parts[0]
    alike = ("gpu", "driver", "torch", "triton", "vllm", "python", "sources")
    for part in parts[1:]:
        ours, other = first.provenance, part.provenance
        names = [name for name in alike if getattr(ours, name) != getattr(other, name)]
        if (first.what, first.rung) != (part.what, part.rung):
            names.insert(0, "what was timed")
        if names:
            raise BadInput(f"these parts make no record together: they differ in {', '.join(names)}")
    by_labels = {tuple(row.labels.items()): row for part in parts for row in part.rows}
    of = [part.provenance for part in parts]
    commands = "; ".join(dict.fromkeys(one.command for one in of))
    seconds = sum(one.seconds or 0.0 for one in of)
    made_with = max(of, key=lambda one: one.date).model_copy(update={"command": commands, "seconds": seconds})
    return first.model_copy(update={"provenance": made_with, "rows": list(by_labels.values())})


def rows(what: str, backend: str) -> Iterator[Row]:
    """Time one of `MODULES` on an executor."""
    made: Iterator[Row] = importlib.import_module(f"mrv2lab.{MODULES[what]}").rows(backend)
    return made


def in_turn(backend: str, works: dict[str, tuple[Callable[[], object], int]]) -> dict[str, Latency]:
    """Milliseconds of each work, all in turn, `RUNS` times after one that does not count.

    Args:
        works: for each name what is called, and how often in one run; the mean of these calls counts. Each
            call is until the device has done its work; on the emulator its CPU time.
    """
    clock = time.perf_counter if backend == "cuda" else time.process_time
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(RUNS + 1):
        for name, (work, calls) in works.items():
            _wait(backend)
            start = clock()
            for _ in range(calls):
                work()
                _wait(backend)
            taken[name].append(1e3 * (clock() - start) / calls)
    return {name: latency(ms[1:]) for name, ms in taken.items()}


def latency(ms: list[float]) -> Latency:
    """Median and band of some runs."""
    median, p20, p80 = (float(f"{number:.4g}") for number in np.percentile(ms, [50, 20, 80]))
    return Latency(median=median, p20=p20, p80=p80)


def _wait(backend: str) -> None:
    if backend == "cuda":
        torch.cuda.synchronize()
