"""What a run showed, where and with what it ran, and the files that keep it.

A file holds one `Record`: one provenance, many runs. It is checked when it is read, and written only
once everything in it has been run.
"""

import errno
import itertools
import json
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from mrv2lab import catalogue, sources
from mrv2lab.catalogue import Rung as Rung
from mrv2lab.errors import BadInput, RecordError, printable

Role = Literal["baseline", "buggy", "tempting", "workaround", "fixed", "unknown"]
"""Why a variant is there. `baseline` is right and slow. `buggy` was shipped, and fails. `tempting` is a
repair that suggests itself and does not hold: nobody shipped it, or it does not repair. `fixed` holds."""

Stated = Literal["correct", "wrong", "crash", "eager"]
"""What a variant may state; a run may also be `failed`, which is nobody's bug and never as stated."""

Verdict = Literal[Stated, "failed"]

TOLERATED: dict[Rung, float] = {"emulated": 1e-3, "cuda": 1e-3, "source": 1e-3, "vllm": 2e-2}
"""Largest error of a right answer, as `verdict` and `live.run` say. To import them takes torch."""

ALLOWED = 0.1
"""Largest `eager_share` of what is `correct`, as `verdict` says."""

_MOST = 10_000  # steps of a run, and runs in a file; our own have some dozens

_PACKAGE = Path(__file__).resolve().parent
_CLONE = _PACKAGE.parent

RECORDS = _PACKAGE / "data" if (_PACKAGE / "data").is_dir() else _CLONE / "data"
"""Recorded runs and audits: inside the package where a wheel has put them, beside it in a clone."""

DATA = RECORDS / "results"

_UNFINISHED = ".mrv2lab-part"
_OPEN = re.compile(r"/dev/(std|fd/)|/proc/")  # names of files that are open already

IN_CLONE = RECORDS.parent == _CLONE


class Strict(BaseModel):
    """Knows its fields and no others; infinite numbers are written as words, which JSON has none for."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings", defer_build=True)


_WORDS = {
    "missing": "is not there",
    "extra_forbidden": "no such key",
    "tuple_type": 'a list is needed, like ["name"] or [1, 2]',
    "dict_type": "a table of names and values is needed",
    "model_type": "a table of names and values is needed",
}
"""For what pydantic tells in words of Python."""


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong, and where."""
    first = error.errors()[0]
    told = _WORDS.get(first["type"], first["msg"])
    return printable(f"{'.'.join(map(str, first['loc'])) or 'document'}: {told}")


class Document(Strict):
    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    def save(self, path: Path) -> None:
        write(path, self.to_json())

    @classmethod
    def read(cls, path: Path, what: str, remedy: str) -> Self:
        """Read and check a file of this kind. RecordError: there is no such `what`, and why; the `remedy`."""
        if IN_CLONE and path.is_relative_to(RECORDS):
            remedy = f"git restore {RECORDS.name} brings back what came with the clone; else {remedy}"
        try:
            return cls.model_validate(_plain(from_json(path.read_bytes())))
        except OSError as error:
            raise RecordError(f"{path}: cannot be read ({type(error).__name__}); {remedy}") from error
        except ValueError as error:
            wrong = first_of(error) if isinstance(error, ValidationError) else f"invalid JSON: {error}"
            raise RecordError(f"{path}: no {what}: {wrong}; {remedy}") from error


def _plain(value: Any) -> Any:
    """A document of anybody, without what would command a terminal. ValueError: a number out of reach."""
    if isinstance(value, dict):
        return {printable(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [*map(_plain, value)]
    if isinstance(value, int) and abs(value) >= 1 << 63:
        raise ValueError("a number of more than 64 bits")
    return printable(value) if isinstance(value, str) else value


def put_aside(path: Path) -> Path:
    """Give a damaged file another name, which is returned, so that a new one can be made. OSError."""
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
    return path.replace(next(name for name in names if not name.exists()))


def write(path: Path, text: str) -> None:
    """Write a file in one go: it is whole, or as it was. OSError: it cannot be written; names it."""
    try:
        if (target := _target(path)) is None:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_what_was_left(target.parent)
        unfinished = target.with_name(f".{secrets.token_hex(8)}{_UNFINISHED}")
        try:
            with unfinished.open("x", encoding="utf-8") as file:
                file.write(text)
            if target.exists():
                unfinished.chmod(target.stat().st_mode & 0o777)
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    except OSError as error:
        if error.filename is None or _UNFINISHED in str(error.filename):  # a full disk names none
            error.filename = str(path)
        raise


def check_place(path: Path, is_folder: bool = False) -> None:
    """See before a run that `write` can make this file, or files in this folder; nothing is left there.

    Only trying tells, for root may write where nothing can be made. BadInput: it cannot, and why.
    """
    try:
        if target := _target(path / "file" if is_folder else path):
            above = next(folder for folder in target.absolute().parents if folder.exists())
            tempfile.TemporaryFile(dir=above).close()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name a place where you may write") from error


def _target(path: Path) -> Path | None:
    """The file to replace; None for what can only be added to, as a pipe. OSError: it cannot be written."""
    if path.exists() and (not path.is_file() or _OPEN.match(str(path.absolute()))):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return None
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def _remove_what_was_left(folder: Path) -> None:
    """Who is killed while it writes a file leaves a part of it. After an hour nobody still writes it."""
    for part in folder.glob(f".*{_UNFINISHED}"):
        with suppress(OSError):
            if time.time() - part.stat().st_mtime > 3600:
                part.unlink()


class Provenance(Strict):
    """Where a number comes from."""

    gpu: str | None  # None, as the driver, for a run that used none
    driver: str | None
    torch: str
    triton: str
    vllm: str | None
    python: str
    commit: str
    command: str
    seed: int
    date: datetime
    # files of this package that the number depends on, each with a hash of what it meant then
    # (`mrv2lab.sources`). Empty in files that were made before records knew them.
    sources: dict[str, str] = {}
    seconds: float | None = None  # what it took from the start of its process until the file was written

    @property
    def machine(self) -> str:
        """One line for captions of what runs now: machine and versions, the same from day to day."""
        where = self.gpu or "CPU"
        where += f", vllm {self.vllm}" if self.vllm else ""
        return f"{where}, torch {self.torch}, triton {self.triton}"

    @property
    def label(self) -> str:
        """The same for what was recorded, with the date and `since`."""
        return f"{self.machine}, {self.date:%Y-%m-%d}{self.since}"

    @property
    def since(self) -> str:
        """What a reader of a recorded number must know: the code has changed since. Empty if it has not.

        Notebooks are compared without it, by a rule in `tests/nbval.cfg`.
        """
        if not self.sources:
            return "; the code may have changed since"
        return "; the code has changed since" if self.changed else ""

    @property
    def changed(self) -> list[str]:
        """The parts of the package that the numbers depend on and that have changed since."""
        return sources.parts(sources.changed(self.sources))


class Kept(Document):
    """A document with numbers, and where they come from: what lies below `data`."""

    provenance: Provenance

    def save(self, path: Path) -> None:
        """Write the file as `Document` does, and into it how long its process has worked."""
        import psutil

        since_start = time.time() - psutil.Process().create_time()
        seconds = max(0.0, round(since_start, 1))  # a clock may have been set back
        provenance = self.provenance.model_copy(update={"seconds": seconds})
        super(Kept, self.model_copy(update={"provenance": provenance})).save(path)


_Milliseconds = Annotated[float, Field(gt=0, lt=1e12)]  # less than 30 years


class Latency(Strict):
    """Milliseconds: median, 20th and 80th percentile."""

    median: _Milliseconds
    p20: _Milliseconds
    p80: _Milliseconds


class Run(Strict):
    case: str
    variant: str
    role: Role | None  # None for a function of the reader's own
    rung: Rung  # how real the run was
    verdict: Verdict  # what was observed against the eager reference
    expected: Stated  # what the variant states
    # for each step, norm of the logits' difference to the reference over the latter's
    errors: list[Annotated[float, Field(ge=0)]] = Field(max_length=_MOST)
    step_modes: list[Literal["eager", "graph"]]  # for each step, how the model was run, `eager` or `graph`
    # of the steps that fit a graph, the largest part of a model's work that was done without one, 0 to 1;
    # attention between graphs is left out. None where no step fits a graph.
    eager_share: float | None = Field(default=None, ge=0, le=1)
    # the model's forward pass in one decode step; with pipeline stages the whole step of the pair, sampling
    # and the way between stages included; on `vllm` the engine's whole step, from one step's logits to the
    # next one's. None on `emulated` and `source`, and where the answer was not right: a wrong answer has no
    # speed.
    latency_ms: Latency | None = None
    kernels: dict[str, int] = {}  # name to count, from the captured graph that decode steps replay
    metrics: dict[str, float] = {}  # named figures, units in the names
    shape: dict[str, int] = {}  # what the caller could choose: batch size, rank and so on
    message: str | None = None  # of the exception, where the verdict is `crash` or `failed`
    # file, line and function of this package that the exception came out of. Work on a GPU is asynchronous:
    # that need not be the line whose work failed.
    where: str | None = None
    log_tail: list[str] = []  # last lines of its traceback, or that an engine printed; no paths of a machine
    provenance: Provenance | None = Field(default=None, exclude=True)  # a file has one for all of its runs

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        if self.latency_ms is not None and self.verdict not in ("correct", "eager"):
            raise ValueError(f"verdict {self.verdict!r} with a latency: a wrong answer has no speed")
        if (ms := self.latency_ms) and not ms.p20 <= ms.median <= ms.p80:
            raise ValueError("a median that is not between the percentiles")
        if self.verdict in ("correct", "eager") and not self.errors:
            raise ValueError(f"verdict {self.verdict!r} without a step")
        if len(self.errors) != len(self.step_modes):
            raise ValueError(f"{len(self.errors)} errors for {len(self.step_modes)} steps")
        if self.verdict in ("correct", "eager") and self.max_error > TOLERATED[self.rung]:
            raise ValueError(f"verdict {self.verdict!r} with an error of {self.max_error:g}")
        if self.verdict == "correct" and self.eager_share is not None and self.eager_share > ALLOWED:
            raise ValueError(f"verdict {self.verdict!r} with an eager share of {self.eager_share:g}")
        if not self.raised and (self.message or self.log_tail):
            raise ValueError(f"verdict {self.verdict!r} with the words of an exception")
        return self

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.expected

    @property
    def raised(self) -> bool:
        return self.verdict in ("crash", "failed")

    @property
    def max_error(self) -> float:
        return max(self.errors, default=0.0)


class Record(Kept):
    runs: list[Run] = Field(min_length=1, max_length=_MOST)

    @model_validator(mode="after")
    def _hand_down(self) -> "Record":
        """Where they come from, to runs that state what their variants do; none of a bug states `correct`."""
        cases = catalogue.entries().values()
        known = {(case.name, v.name): (v.role, v.expected) for case in cases for v in case.variants}
        for run in self.runs:
            stated = run.role, run.expected
            is_other = run.role is not None and stated != known.get((run.case, run.variant), stated)
            if is_other or stated == ("buggy", "correct"):
                raise ValueError(f"{run.case} {run.variant}: no variant of role {run.role} states that")
            if run.rung in ("cuda", "vllm") and self.provenance.gpu is None:
                raise ValueError(f"rung {run.rung} without a GPU")
        handed = [run.model_copy(update={"provenance": self.provenance}) for run in self.runs]
        object.__setattr__(self, "runs", handed)
        return self


def load(path: Path) -> Record:
    """Read and check a results file, as `Document.read`."""
    return Record.read(path, "results file of mrv2lab", "make one with mrv2lab run --save")


def recorded(case: str, rung: Rung, release: str = "") -> list[Run]:
    """Runs kept for a case and rung, of all machines; of another release than the rung's own if named."""
    name = f"{rung}-{release}-*.json" if release else f"{rung}-[!0-9]*.json"
    return [run for path in sorted((DATA / case).glob(name)) for run in load(path).runs]


def provenance_of(path: Path, case: str = "") -> list[Provenance]:
    """Of any file with numbers: first the file's, then those of cases that were made alone; or of one case.
    RecordError: not there, damaged, without one, or nothing of the case is in it.
    """
    try:
        document = _plain(json.loads(path.read_text()))
        together, alone = document["provenance"], document.get("made", {})
        rows = {cell["case"]: together for cell in document.get("cells", [])} | alone
        found = [rows[case]] if case else [together, *alone.values()]
        return [Provenance.model_validate(each) for each in found]
    except (OSError, RecursionError, ValueError, TypeError, KeyError) as error:
        raise RecordError(f"{path}: no record that can be read ({type(error).__name__})") from error


def since(path: Path, case: str = "") -> str:
    """Why a record, or a case in it, is to be made again, in a few words; empty if the code is as it was."""
    try:
        stale = [made for made in provenance_of(path, case) if made.since]
    except RecordError:
        return "not there, or cannot be read"
    parts = dict.fromkeys(part for made in stale for part in made.changed)
    return ": ".join(filter(None, [*(made.since[2:] for made in stale[:1]), ", ".join(parts)]))


def provenance(seed: int, *, uses_gpu: bool, made_by: dict[str, str] | None = None) -> Provenance:
    """What is true of this process, here and now; `made_by` is from `sources.of` or `sources.of_run`."""
    import torch

    # Of the clone: a package that is installed may lie in the repository of somebody else.
    commit = _output("git", "rev-parse", "HEAD") if IN_CLONE else None
    return Provenance(
        gpu=torch.cuda.get_device_name() if uses_gpu else None,
        driver=nvidia_smi("driver_version") if uses_gpu else None,
        torch=torch.__version__,
        triton=version("triton"),
        vllm=version_or_none("vllm"),
        python=platform.python_version(),
        commit=os.environ.get("MRV2LAB_COMMIT") or commit or "unknown",
        command=_command_line(),
        seed=seed,
        date=datetime.now(UTC).replace(microsecond=0),
        sources=made_by or {},
    )


def file_name(rung: Rung, provenance: Provenance, release: str = "") -> str:
    """`cuda-nvidia-h200.json`: rung and machine; `vllm-0.26.0-nvidia-h200.json`: also another release."""
    machine = (provenance.gpu or "cpu").lower().replace(" ", "-")
    return "-".join(filter(None, [rung, release, machine])) + ".json"


def _command_line() -> str:
    """The command as a user would type it; of other programs (a notebook, a test run) the name."""
    program = Path(sys.argv[0]).name
    if program not in ("mrv2lab", "__main__.py"):
        return program.removesuffix(".py")
    # Of an absolute path only the end: the rest tells of the machine.
    command = shlex.join(["mrv2lab", *(Path(w).name if w.startswith("/") else w for w in sys.argv[1:])])
    return os.fsencode(command).decode(errors="replace")  # a path need not be UTF-8, a record is


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True, cwd=_CLONE)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def nvidia_smi(asked: str) -> str | None:
    """What it says of the first GPU; None if there is none. This process gets no part of the GPU by that."""
    return _output("nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "-i", "0")


def version_or_none(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
