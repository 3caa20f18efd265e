"""Something goes wrong: what is then said, how soon, and what is left behind. Each a row of the record."""

import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from runpy import run_path

import pytest

HERE = Path(__file__).parent
CASE, VARIANT, SHAPE = "breakable_graph", "full_graph", {"num_layers": 1, "batch_size": 1}
PATIENCE_S = 10  # for processes to go after the command that started them
# Caches of torch's; a folder of Python's, which stays if a command is killed.
OTHERS = ("torchinductor_", "pymp-")


@dataclass(frozen=True)
class Told:
    """How a command ended: its status (negative: by a signal), its outputs, seconds after what went wrong."""

    status: int
    out: str
    err: str
    seconds: float | None
    left: list[str]  # processes, and what lies in the folder for temporary files

    @property
    def last(self) -> str:
        """The last line that it said; of one that was ended by a signal nobody expects any."""
        if self.status == 0:
            return "all is as stated"
        if self.status < 0:
            return f"the shell tells of {signal.Signals(-self.status).name}"
        return (self.err.strip() or self.out.strip()).rpartition("\n")[2]


class Faults:
    """A folder in which commands run, with their temporary files, cache and progress in it."""

    one = ("run", CASE, "--variant", VARIANT, *chain(*(("--set", f"{k}={n}") for k, n in SHAPE.items())))
    """Words of a run that takes no longer than it must."""

    def __init__(self, warm, folder, rung, record):
        self._warm, self.folder, self._rung, self._record = warm, folder, rung, record
        self.others = OTHERS
        self.tmp, self.home = Path(tempfile.mkdtemp()), folder / "home"  # a socket has a short path
        self.home.mkdir()

    @property
    def fired(self):
        """A file, which is there once what was to happen has happened."""
        return self.folder / "fired"

    def environment(self, at, what, after=None):
        """Of a process in which, and below which, a fault happens. Arguments as of `run`."""
        given = {
            "TMPDIR": str(self.tmp),
            "HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join([str(HERE / "inject"), os.environ.get("PYTHONPATH", "")]),
            "MRV2LAB_PROGRESS": str(self.folder / "progress.json"),
        }
        if at is None:
            return given
        module, function = at.split(":")
        wrong = {"module": module, "function": function, "what": what, "file": str(self.fired)}
        if after is not None:
            wrong["after"] = str(after)
        return given | {"MRV2LAB_FAULT": json.dumps(wrong)}

    def run(self, fault, *words, at=None, what=None, after=None, mounts=(), tells="", **environment):
        """Run `mrv2lab WORDS` with a fault, which has a name: a row. Without a name it is none.

        Args:
            at: `module:Class.method`, at a call of which there happens `what`, a name of `FAULTS`.
            after: a file; then it happens while that call runs, once the file is there.
            mounts: folders with a size, or None if they cannot be written.
            tells: a part of the line to keep of what it says; by default its last one.
        """
        given, fired = os.environ | self.environment(at, what, after), self.fired
        files = [str(self.folder / name) for name in ("stdout", "stderr")]
        for file in files:
            Path(file).write_text("")
        asked = {
            "words": list(map(str, words)),
            "environment": given | environment,
            "folder": str(self.folder),
            "files": files,
            "mounts": [(str(path), size) for path, size in mounts],
            "patience_s": PATIENCE_S,
        }
        self._warm().send(asked)
        status, ended, left = self._warm().recv()
        if at and not fired.exists():
            self.row(fault, "it did not come to that function")
            pytest.fail("it did not come to that function")
        seconds = max(0.0, ended - fired.stat().st_mtime) if at else None
        out, err = (Path(file).read_text(errors="replace") for file in files)
        result = Told(status, out, err, seconds, left := left + self.in_tmp())
        if fault:
            # One that begins so explains a verdict below the table.
            lines = [line.lstrip() for line in (err + out).splitlines() if tells]
            lines = [line for line in lines if tells in line and not line.startswith(tells)] or [result.last]
            self.row(fault, lines[0], status=status, seconds=seconds, left=left)
        return result

    def in_tmp(self):
        """What is left in the folder for temporary files."""
        return [path.name for path in self.tmp.iterdir() if not path.name.startswith(self.others)]

    def row(self, fault, told, *, status=None, seconds=None, left=()):
        """Keep a row. `told` is what the user reads."""
        told = told.replace(f"{self.folder}/", "")
        row = {"fault": fault, "rung": self._rung, "told": told[:300], "status": status}
        self._record("fault", row | {"seconds": seconds and round(seconds, 2), "left": list(left)})


@pytest.fixture(scope="session")
def warm():
    """A pipe to the process that runs commands. It begins when there is a first one."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(_begun()))


@contextmanager
def _begun():
    # A look for a GPU must not start CUDA there, which forks of a process that has started it cannot use.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    forks = multiprocessing.get_context("forkserver")
    ours, theirs = forks.Pipe()
    given = {"asked": theirs, "case": (CASE, VARIANT), "shape": SHAPE}
    process = forks.Process(target=run_path, args=(str(HERE / "warm.py"), given))
    process.start()
    theirs.close()
    yield ours
    ours.close()
    process.join()


@pytest.fixture
def faults(warm, tmp_path, record_property, request):
    rung = "cuda" if request.node.get_closest_marker("gpu") else "emulated"
    with made(warm, tmp_path, getattr(request.module, "RUNG", rung), record_property) as faults:
        yield faults


@pytest.fixture(scope="session")
def make_faults(warm):
    """In a folder, without a record."""
    return lambda folder: made(warm, folder, "", lambda *row: None)


@contextmanager
def made(*args):
    faults = Faults(*args)
    try:
        yield faults
    finally:
        shutil.rmtree(faults.tmp)


@pytest.fixture
def mounts():
    """Skips where no folder can be made small or read-only for one process."""
    if sys.platform != "linux" or os.geteuid() or not _may_mount():
        pytest.skip("needs the right to mount")


def _may_mount():
    if pid := os.fork():
        return os.waitpid(pid, 0)[1] == 0
    os._exit(0 if ctypes.CDLL(None).unshare(0x20000) == 0 else 1)


# ---- the record ----


def pytest_addoption(parser):
    parser.addoption("--faults", metavar="FILE", help="write what was seen to this file")


_rows, _lost = [], []


def pytest_runtest_logreport(report):
    if report.when == "call":
        _lost.extend(number for name, number in report.user_properties if name == "records lost")
        passed = {"contained": report.passed, "test": report.nodeid.rpartition("::")[2]}
        _rows.extend(row | passed for name, row in report.user_properties if name == "fault")


def pytest_sessionfinish(session):
    file = session.config.getoption("--faults", None)
    if file and not hasattr(session.config, "workerinput"):
        import torch

        from mrv2lab import results

        uses_gpu = any(row["rung"] in ("cuda", "vllm") for row in _rows) and torch.cuda.is_available()
        made = results.provenance(0, uses_gpu=uses_gpu).model_dump(
            mode="json", exclude={"sources", "seconds"}
        )
        made["command"] = "make faults"
        rows = sorted(_rows, key=lambda row: (row["test"], row["fault"]))
        record = {"provenance": made, "lost": sum(_lost), "rows": rows}
        results.write(Path(file), json.dumps(record, indent=1) + "\n")
