"""Many cells of case x variant x rung x shape, each run in a process of its own, resumed by what is missing.

A cell's file is named after all that its result hangs on: what is run, the code, the versions. So a sweep
that was interrupted goes on where it was, what has changed is run anew, and several workers share a folder,
on other machines too: whoever runs a cell holds a lock, which ends with its process, however that ends.
"""

import fcntl
import importlib
import itertools
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property, partial
from hashlib import sha256
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, ValidationError

from mrv2lab import forks, sources
from mrv2lab.cases import CASES
from mrv2lab.errors import BadInput, RecordError, choose
from mrv2lab.results import Record, Run, Rung, Strict, first_of, load, put_aside, version_or_none

_DONE, _TAKEN = "done", "taken"


class Grid(Strict):
    """What to run: every combination. A shape that a case does not have is left out for it."""

    case: tuple[str, ...] = tuple(CASES)
    variant: tuple[str, ...] = ()  # none: all
    rung: tuple[Rung, ...] = ("emulated",)
    shape: dict[str, tuple[int, ...]] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Grid":
        """BadInput: it cannot be read, or holds something else."""
        try:
            if not (given := tomllib.loads(path.read_text("utf-8"))):
                raise BadInput(f"{path}: an empty grid; name a case, a variant, a rung or a shape")
            return cls.model_validate(given)
        except OSError as error:
            raise BadInput(f"{path}: {error.strerror}") from error
        except (RecursionError, ValueError) as error:
            wrong = f"no grid: {first_of(error)}" if isinstance(error, ValidationError) else str(error)
            raise BadInput(f"{path}: {wrong.splitlines()[0]}") from error

    def cells(self) -> list["Cell"]:
        """BadInput: an unknown name, a shape out of range, or nothing to run."""
        chosen = [CASES[choose("case", name, list(CASES))] for name in self.case]
        for name in self.variant:
            choose("variant", name, [v.name for case in chosen for v in case.variants])
        for name in self.shape:
            choose("shape", name, sorted({limit for case in chosen for limit in case.limits}))
        found: dict[str, Cell] = {}
        for case, rung in itertools.product(chosen, self.rung):
            names = [name for name in self.shape if name in case.limits and rung in ("emulated", "cuda")]
            for variant, values in itertools.product(
                case.variants, itertools.product(*(self.shape[name] for name in names))
            ):
                if rung in case.rungs and variant.name in (self.variant or [variant.name]):
                    shape = dict(zip(names, values, strict=True))
                    case.checked_rung(rung, shape)
                    cell = Cell(case=case.name, variant=variant.name, rung=rung, shape=shape)
                    found[cell.file] = cell
        if not found:
            raise BadInput("the grid holds nothing to run: no case that it names claims a rung that it names")
        return list(found.values())


class Cell(Strict):
    case: str
    variant: str
    rung: Rung
    shape: dict[str, int]

    @cached_property
    def file(self) -> str:
        versions = [version_or_none(package) for package in ("torch", "triton", "vllm")]
        whole = [self.model_dump(), sources.of_run(self.case, self.rung), versions]
        return f"{self.case}-{self.variant}-{sha256(json.dumps(whole).encode()).hexdigest()[:16]}.json"

    def kept(self, folder: Path) -> Run | None:
        """Its run, if it is there. RecordError: something else is there."""
        if not (path := folder / self.file).exists():
            return None
        record = load(path)
        run, made = record.runs[0], record.provenance
        named = Cell(case=run.case, variant=run.variant, rung=run.rung, shape=run.shape)
        if named != self.model_copy(update={"shape": run.shape | self.shape}):
            raise RecordError(f"{path}: holds {named} on {named.rung}, and not {self} on {self.rung}")
        with_what = made.sources, made.torch, made.triton  # of `vllm` a record names what the cell asks for
        today = sources.of_run(self.case, self.rung), torch.__version__, version_or_none("triton")
        if len(record.runs) > 1 or with_what != today:
            raise RecordError(f"{path}: more than one run, or other code or versions than its name says")
        return run

    def run(self, folder: Path, waits: bool) -> str:
        """Run it and keep the record, unless that has been done. Is somebody else who runs it waited for?"""
        path, claims = folder / self.file, folder / ".claims"
        claims.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # others may have put a link there
        with open(os.open(claims / self.file, flags, 0o666), "a") as claim:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not waits:
                    return _TAKEN
                _tell(f"waiting for another process, which runs {self} and holds {claims / self.file}")
                fcntl.flock(claim, fcntl.LOCK_EX)
            try:
                is_done = self.kept(folder) is not None
            except RecordError as error:
                is_done = False
                _tell(f"set aside as {put_aside(path).name}, and run again: {error}")
            if not is_done:
                print(os.getpid(), file=claim, flush=True)  # who has begun it, each on a line
                run = CASES[self.case].run(self.variant, rung=self.rung, **self.shape)
                assert run.provenance is not None
                Record(provenance=run.provenance, runs=[run]).save(path)
            return _DONE

    @property
    def uses_gpu(self) -> bool:
        return self.rung in ("cuda", "vllm")

    def __str__(self) -> str:
        return f"{self.case} {self.variant} {self.shape}"


Each = Callable[[Callable[..., str], Sequence[Cell]], Iterable[str]]
"""Asks a function about every cell; the answers come in order."""


@contextmanager
def _here(folder: Path, workers: int, address: str | None) -> Iterator[Each]:
    if workers > 1:  # side by side their threads would fight for cores; the server of forks begins with it
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    left, leave = Pipe(duplex=False)
    with left, ThreadPoolExecutor(workers) as pool:
        try:
            yield lambda function, cells: pool.map(partial(function, until=[left]), cells)
        finally:  # Ctrl-C, mostly: what waits is not begun, and what runs ends
            pool.shutdown(wait=False, cancel_futures=True)
            leave.close()


@contextmanager
def _on_ray(folder: Path, workers: int, address: str | None) -> Iterator[Each]:
    """A task of Ray's for each cell, on the cluster at an address; without one Ray starts its own, here,
    also where it would find another.
    """
    ray = _library("ray")
    ours = {} if address else {"num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(address=address or "local", log_to_driver=False, **ours)
    except Exception as error:  # nobody answers at the address; its processes were not up in time
        ray.shutdown()
        raise BadInput(f"Ray did not start, or does not answer: {str(error).splitlines()[0]}") from error

    def each(function: Callable[[Cell], str], cells: Sequence[Cell]) -> Iterator[str]:
        task = ray.remote(lambda cell: function(cell))  # of partials Ray makes none
        of_cpus = partial(task.options, num_cpus=1, max_retries=0)
        asked = [of_cpus(num_gpus=int(cell.uses_gpu)).remote(cell) for cell in cells]
        return (_told(cell, ray.get, one) for cell, one in zip(cells, asked, strict=True))

    try:
        yield each
    finally:
        ray.shutdown()


@contextmanager
def _on_slurm(folder: Path, workers: int, address: str | None) -> Iterator[Each]:
    """A job of an array of Slurm's for each cell, by submitit; without a Slurm, a process of this host."""
    own = folder / ".slurm"
    executor = _library("submitit").AutoExecutor(own, cluster=address)
    own.mkdir(parents=True, exist_ok=True)
    own.chmod(0o700)  # who may write there has his pickles run: submitit hands over cells and results as such

    def each(function: Callable[[Cell], str], cells: Sequence[Cell]) -> Iterator[str]:
        gpus = int(any(cell.uses_gpu for cell in cells))
        executor.update_parameters(cpus_per_task=1, gpus_per_node=gpus, slurm_array_parallelism=workers)
        jobs = executor.map_array(function, cells) if cells else []
        return (_told(cell, job.result) for cell, job in zip(cells, jobs, strict=True))

    yield each


ON: dict[str, Callable[[Path, int, str | None], AbstractContextManager[Each]]] = {
    "here": _here, "ray": _on_ray, "slurm": _on_slurm,
}  # fmt: skip
"""Who spreads cells over processes. What each needs is installed with an extra of its name."""


def sweep(
    cells: Sequence[Cell], folder: Path, *, workers: int = 1, on: str = "here", address: str | None = None
) -> Iterator[tuple[Cell, Run | str]]:
    """Run what is missing, and yield each cell as it is done, with its run, or words for how it failed.

    Cells that somebody else runs come last: if that one has died, they are run here.

    Args:
        on: a name of `ON`. All machines see `folder` under the same path, and have this package.
        address: of Ray's cluster, or submitit's name of one.

    Raises:
        BadInput: there is no such name, or what it needs is not installed.
    """
    folder = folder.absolute()
    with ON[choose("engine", on, list(ON))](folder, workers, address) as each:
        for waits in (False, True):
            told, taken = each(partial(_run, folder=folder, waits=waits), cells), []
            for cell, word in zip(cells, told, strict=True):
                if word == _TAKEN:
                    taken.append(cell)
                else:
                    yield cell, load(folder / cell.file).runs[0] if word == _DONE else word
            cells = taken


def _run(cell: Cell, folder: Path, waits: bool, until: Sequence[Connection] = ()) -> str:
    with suppress(RecordError):  # whoever holds the cell's lock sets it aside
        if cell.kept(folder):
            return _DONE
    given = cell, folder, waits, dict(sources.READ)
    return _told(cell, forks.apart, _begin, *given, outlives=True, until=until)


def _begin(cell: Cell, folder: Path, waits: bool, read: dict[Path, tuple[str, list[str]]]) -> str:
    sources.READ.update(read)  # a fork would take as long to read all that again as to run the least
    return cell.run(folder, waits)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _told(cell: Cell, ask: Callable[..., Any], *args: Any, **options: Any) -> str:
    """What somebody says of a cell, or how he died."""
    try:
        return str(ask(*args, **options))
    except Exception as died:
        return f"{cell}: {died}"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        extra = {"submitit": "slurm"}.get(name, name)
        raise BadInput(f"--on {extra} needs the library {name}: pip install 'mrv2lab[{extra}]'") from error
