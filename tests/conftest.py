"""What tests share: the executors to run on, and the rule that GPU tests run where a GPU is."""

import gc
import itertools
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from runpy import run_path

import pytest

import mrv2lab  # noqa: F401, before any test imports Triton

gc.disable()  # until all is imported, then it collects more seldom: that was a tenth of the time of all tests
gc.set_threshold(100_000, 20, 100)

_ROOT = Path(__file__).parents[1]
_MODULE = Path(__file__).with_name("forked_module.py")
_WARM = Path(__file__).with_name("warm_release.py")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "mrv2lab.cases",
        "mrv2lab.cli",
        "mrv2lab.terminal",
        "mrv2lab.tables",
        "mrv2lab.runner.pp_executor",
        "torch.fx.experimental.symbolic_shapes",  # by the first matmul under the emulator; most of a second
        "pytest",  # by files of tests in which a stage's work is written
        *("mrv2lab.report", "mrv2lab.sweep", "triton.experimental.gluon"),
        "pip._internal.cli.main",
        "pip._internal.commands.download",
    ]
)
_SELDOM = "import gc; gc.freeze(); gc.set_threshold(100_000, 20, 100)"
_FORKS.set_forkserver_preload = lambda modules: None  # those of the package would take their place

# Needs a release of vLLM, and a process in which much of it is replaced. Asked for, it runs or fails.
collect_ignore = [] if os.environ.get("MRV2LAB_VLLM") else ["conformance"]


# Files for one process: what they look at is kept there. Engines with faults; releases of vLLM, imported.
TOGETHER = [
    ("tests/mystery/", "tests/test_journal.py"),
    (
        *("tests/upstream/test_source.py", "tests/upstream/test_conformance.py"),
        *("tests/live/test_extension.py", "tests/live/test_releases.py", "tests/upstream/test_dispatch.py"),
    ),
]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of `--dist loadfile`; any other stays what it is."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return next(
                (group[0] for group in TOGETHER if nodeid.startswith(group)), super()._split_scope(nodeid)
            )

    return Scheduling(config, log)


def pytest_ignore_collect(collection_path, config):
    """Where tests of one marker are asked for, files without it need not be imported."""
    if config.option.markexpr in ("browser", "live", "slow", "source") and collection_path.suffix == ".py":
        return f"mark.{config.option.markexpr}" not in collection_path.read_text() or None
    return None


def pytest_collection_modifyitems(config, items):
    """Where there is no GPU, what needs one is no item at all: there are thousands."""
    import torch  # not above: the process that hands tests to others collects none, and does without

    if not torch.cuda.is_available():
        kept, need_one = [], []
        for item in items:
            (need_one if item.get_closest_marker("gpu") else kept).append(item)  # keywords are parameters too
        config.hook.pytest_deselected(items=need_one)
        items[:] = kept


def pytest_collection_finish():
    """What imports have made stays; to look through all of it at each collection of garbage takes longer."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def same_random_numbers_in_every_run():
    import torch

    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # it would keep a stack of each call for the GPU that may come
        torch.default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def readers(tmp_path_factory):
    """A folder for progress, and numbers for those who make it: to make a folder for each costs more."""
    return tmp_path_factory.mktemp("readers"), itertools.count()


@pytest.fixture(autouse=True)
def progress_of_its_own(readers, monkeypatch):
    folder, numbers = readers
    monkeypatch.setenv("MRV2LAB_PROGRESS", str(folder / f"{next(numbers)}" / "progress.json"))


@pytest.fixture(autouse=True, scope="module")
def none_of_other_files():
    """What earlier files have left, a million objects in the end, is put where no collection of garbage looks
    through it: an audit may ask for one of them after another."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_before(monkeypatch):
    """Objects of earlier tests are put where a guard, which asks Python for all, does not look in here. Gives
    what it is kept from."""
    from mrv2lab import reads

    gc.collect()
    gc.freeze()
    thaws = reads._thawed
    monkeypatch.setattr(reads, "_thawed", nullcontext)
    return thaws


@pytest.fixture
def thawed(nothing_before, monkeypatch):
    """A heap that is not frozen, and a guard that looks at all of it. What a guard finds frozen it freezes
    again, with all garbage since then, and nobody collects that any more."""
    monkeypatch.setattr("mrv2lab.reads._thawed", nothing_before)
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.fixture
def displayed(monkeypatch):
    """What is displayed, as pairs of data and metadata."""
    shown = []
    for module in ("IPython.display", "mrv2lab.widgets"):
        monkeypatch.setattr(
            f"{module}.display", lambda data, raw, metadata=None: shown.append((data, metadata))
        )
    return shown


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """Each executor in turn: one contract, two implementations."""
    return request.param


@pytest.fixture
def device(backend):
    import torch

    return torch.device("cuda" if backend == "cuda" else "cpu")


@pytest.fixture
def in_fork():
    """`in_fork(program)`: what it hands to `tell`, in a process that has imported all and run nothing."""

    def run(program):
        told, end = _FORKS.Pipe(duplex=False)
        process = _FORKS.Process(target=exec, args=(f"{_SELDOM}\n{program}", {"tell": end.send}), daemon=True)
        process.start()
        end.close()
        seen = told.recv()  # EOFError: it ended without a word; what it said of that is in what was printed
        process.join()
        return seen

    return run


class ForkedModule:
    """`forks.command` for `python -P -m MODULE ...`, in a process that has imported this package."""

    def __init__(self, folder):
        self._folder, self._numbers = folder, itertools.count()

    def begin(self, arguments, env, daemon=False):
        """The process of `python -m ARGUMENTS`, which may start others unless a daemon, and its outputs."""
        number = next(self._numbers)
        files = [self._folder / f"{number}.{name}" for name in ("stdout", "stderr")]
        given = {"arguments": arguments, "environment": dict(env), "files": files}
        process = _FORKS.Process(target=run_path, args=(str(_MODULE), given), daemon=daemon)
        process.start()
        return process, files

    def command(self, command, folder, env, limit_s):
        assert command[:3] == [sys.executable, "-P", "-m"]
        process, files = self.begin(command[3:], env, daemon=True)
        process.join(limit_s)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError
        said = files[1].read_text() if files[1].exists() else ""
        return process.exitcode, _last_line(said, process.exitcode)


def _last_line(said, status):
    return (said.strip().splitlines() or [f"exit status {status}, and not a word"])[-1]


@pytest.fixture
def forked_module(tmp_path_factory):
    """Importing takes longer than what such a process does. A test of each kind starts them as users do."""
    return ForkedModule(tmp_path_factory.mktemp("forked"))


class WarmReleases:
    """`subprocess.run` for Python on a release of vLLM: a fork of a process that has imported much of it.

    That process is a fork too, of one that has imported what releases import of others. Of each release there
    are two, for those that set the variable that its decorators read, and for all else.
    """

    EARLY = ("transformers", "vllm.config", "vllm.forward_context", "vllm.v1.request", "vllm.v1.outputs")
    ALL = ("vllm.v1.executor", "vllm.v1.worker.gpu.model_runner")
    SET_IT = ("pp_eager_fallback", "breakable_graph", "tests/conformance")  # what their commands mention

    def __init__(self, folder):
        self._folder, self._lock, self._first = folder, threading.Lock(), None
        self._servers = {}  # by path and imports: the address

    def command(self, command, folder, env, limit_s):
        """As `forks.command`."""
        done = self.run(command, env)
        return done.returncode, _last_line(done.stderr, done.returncode)

    def run(self, command, env):
        """Output and errors are always captured, as text. `command` is `python -P -m ...` or `-P -c ...`."""
        assert command[:2] == [sys.executable, "-P"]
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / name for name in ("stdout", "stderr")}
            for file in files.values():
                file.touch()
            asked = {"arguments": command[2:]} | {name: str(file) for name, file in files.items()}
            status = _ask(self._server(env, command), env, asked)
            return subprocess.CompletedProcess(
                command, int(status or -9), *(file.read_text() for file in files.values())
            )

    def _server(self, env, command):
        with self._lock:
            self._first = self._first or self._start(env)
            early = self._begin(self._first[1], env, self.EARLY)
            sets_it = any(name in word for word in command for name in self.SET_IT)
            return early if sets_it else self._begin(early, env, self.ALL)

    def _begin(self, server, env, imports):
        """The address of a server that has imported these, a fork of another one."""
        known = env["PYTHONPATH"], imports
        if known not in self._servers:
            address = str(self._folder / str(len(self._servers)))
            assert _ask(server, env, {"imports": imports, "address": address}) == "0"
            self._servers[known] = address
        return self._servers[known]

    def _start(self, env):
        address = str(self._folder / "first")
        command = [sys.executable, "-P", str(_WARM), address]
        given = env | {"PYTHONPATH": str(_ROOT)}
        server = subprocess.Popen(command, cwd=_ROOT, env=given, stdout=subprocess.PIPE, text=True)
        assert "ready\n" in iter(server.stdout.readline, ""), "it ended before it had imported what it shall"
        return server, address

    def close(self):
        if self._first:
            self._first[0].terminate()
            self._first[0].communicate()


def _ask(server, env, asked):
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(server)
        asking.sendall(json.dumps(asked | {"environment": env}).encode() + b"\n")
        return asking.makefile().read()


@pytest.fixture(scope="session")
def warm_releases(tmp_path_factory):
    """Importing vLLM takes seven seconds, most probes two. Notebooks start them as users do."""
    warm = WarmReleases(tmp_path_factory.mktemp("warm"))
    yield warm
    warm.close()


def how_long(fixture_name, config):
    """A browser brings an event loop: where other tests run too, it goes with the file that asked for it."""
    return "session" if config.option.markexpr == "browser" else "module"


@pytest.fixture(scope=how_long)
def browser():
    launched = run_path(str(Path(__file__).parent / "browser" / "conftest.py"))["launched"]
    with launched() as browser:
        yield browser
