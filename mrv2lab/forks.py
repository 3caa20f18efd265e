"""Work in a process of its own: a command's, or a function's in a fork of one with what it imports.

To import torch takes longer than most of what is done there.
"""

import gc
import multiprocessing
import multiprocessing.util
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakSet

from mrv2lab import lifeline
from mrv2lab.errors import BadInput

_T = TypeVar("_T")

_ROOM = 1 << 16  # bytes that a disk must have left for a log
_LATE = "torch.fx.experimental.symbolic_shapes"
"""What torch imports, SymPy with it, when it first takes a matmul apart: a third of a second in each fork."""
_FORKS = multiprocessing.get_context("forkserver")
_starting = threading.Lock()
_get_preparation_data = spawn.get_preparation_data
_lifelines = WeakSet[Connection]()


def _let_go() -> None:
    """What a fork of this process inherits is not its own: this one may be gone, and the fork live on."""
    for inherited in [*_lifelines]:
        inherited.close()


os.register_at_fork(after_in_child=_let_go)


class Died(Exception):
    """The process ended and had told nothing; `status` as of `multiprocessing.Process.exitcode`."""

    def __init__(self, status: int | None):
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        status = self.status
        how = f"by {signal.Signals(-status).name}" if status and status < 0 else f"with status {status}"
        return f"its process ended {how}"


def apart(
    work: Callable[..., Any],
    *args: Any,
    limit_s: float | None = None,
    outlives: bool = False,
    until: Sequence[Connection] = (),
) -> Any:
    """What a function of a module returns there, or raises.

    Args:
        limit_s: after so long by the clock it is ended, with all that it has started.
        outlives: if this process is killed, it comes to its end all the same.
        until: nobody wants it any more when one of these can be read: it is ended as at the limit.

    Raises:
        Died: it was killed, or had too much memory, or what it returned cannot be pickled.
        TimeoutError: because of the limit.
    """
    call = _Call(work, *args, outlives=outlives)
    try:
        if call.told not in wait([call.told, *until], limit_s):
            raise TimeoutError(f"no result after {limit_s} s")
        return call.result()
    finally:
        call.end()


def each(work: Callable[..., _T], jobs: Iterable[Sequence[Any]], at_once: int) -> Iterator[_T | Died]:
    """What a function returns for each of these arguments, in order, each in a process of its own.

    Whoever leaves early ends those that run. Raises what the function raises.
    """
    waiting, begun = deque(jobs), deque[_Call]()
    try:
        while waiting or begun:
            busy = [call for call in begun if not call.told.poll()]
            while waiting and len(busy) < at_once:
                busy.append(_Call(work, *waiting.popleft()))
                begun.append(busy[-1])
            if begun[0] in busy:
                wait([call.told for call in busy])
                continue
            try:
                yield begun[0].result()
            except Died as died:
                yield died
            begun.popleft().end()
    finally:
        for call in begun:
            call.end()


def command(
    words: list[str], folder: Path, env: Mapping[str, str], limit_s: float | None = None
) -> tuple[int | None, str]:
    """How a command ended, as of `subprocess.Popen.returncode`, and the last line that it said.

    Args:
        folder: for its log; removed if this process is killed.
        env: added to this process's environment.
        limit_s: as of `apart`, with the same error.
    """
    log = folder / "log"
    # What it says on either stream is to come in order; what it caches in TMPDIR serves the next one too.
    own = {"PYTHONUNBUFFERED": "1", "TMPDIR": tempfile.gettempdir(), **env}
    child = Fork(os.execvp, words[0], words, log=log, folder=folder, env=own)
    try:
        if not wait([child.sentinel], limit_s):
            raise TimeoutError(f"{words[0]} had no end after {limit_s} s")
    finally:
        child.end()
    said = last_lines(log, 1) or [f"exit status {child.status}, and not a word"]
    return child.status, said[0]


class Fork:
    """A function of a module that runs there, and ends when this process does, with what it has started.

    Args:
        log: a file for all that it prints; by default it prints where this process does.
        folder: what to remove if this process is killed; temporary files of the work are made in it.
        env: added to this process's environment.
        modules: what to import before the first fork, beside that of `work`.
        outlives: it does not end when this process is killed.
    """

    def __init__(
        self,
        work: Callable[..., Any],
        *args: Any,
        log: Path | None = None,
        folder: Path | None = None,
        env: Mapping[str, str] = MappingProxyType({}),
        modules: Iterable[str] = (),
        outlives: bool = False,
    ) -> None:
        bound = lifeline.memory()
        far, self._lifeline = _FORKS.Pipe(duplex=False)
        _lifelines.add(self._lifeline)
        scratch = {"TMPDIR": str(folder)} if folder else {}
        about = far, bound, {**os.environ, **scratch, **env}, log, folder, outlives
        try:
            self._child = _started([work.__module__, *modules], _keep, about, work, *args)
        except BaseException:  # Ctrl-C, when it may have begun
            self._lifeline.close()
            raise
        finally:
            far.close()
        # A program that ends without a word to it would wait for it, and it for the program.
        multiprocessing.util.Finalize(self, self._lifeline.close, exitpriority=10)
        self.sentinel = self._child.sentinel
        """For `multiprocessing.connection.wait`: ready when it has ended."""

    @property
    def status(self) -> int | None:
        """As of `multiprocessing.Process.exitcode`; None while it runs."""
        return self._child.exitcode

    def end(self) -> None:
        """Kill it, unless it has ended, and what it has started."""
        if not self._lifeline.closed:
            with suppress(BrokenPipeError):  # it has ended
                self._lifeline.send(None)
            self._child.join(lifeline.PATIENCE_S)
            self._lifeline.close()
        if self._child.exitcode is None:  # its keeper is stuck
            lifeline.kill_below(self._child.pid or 0)
            self._child.kill()
        self._child.join()


def _started(modules: list[str], work: Callable[..., Any], *args: Any) -> BaseProcess:
    """The main module stays here. There it would be run once more: a script without a guard, all it does."""
    _remove_what_was_left()
    with _starting:
        # For the server, which the first fork starts: to it a random.py of this folder would be Python's own.
        was = os.environ.get("PYTHONSAFEPATH")
        os.environ["PYTHONSAFEPATH"] = "1"
        _FORKS.set_forkserver_preload(modules)  # not when modules are imported: others set theirs
        child = _FORKS.Process(target=work, args=args)
        spawn.get_preparation_data = _without_main
        try:
            child.start()
        except OSError as error:
            if "AF_UNIX path too long" in str(error):
                why = "too long a path for a socket; name a shorter folder in TMPDIR"
                raise BadInput(f"{tempfile.gettempdir()}: {why}") from error
            raise
        finally:
            spawn.get_preparation_data = _get_preparation_data
            del os.environ["PYTHONSAFEPATH"]
            os.environ.update({} if was is None else {"PYTHONSAFEPATH": was})
    return child


@cache
def _remove_what_was_left() -> None:
    """Who is killed before his work has a keeper leaves a folder of ours with nothing in it, of `run_stages`
    the task; and whoever is killed, Python's folder with the socket of its server of forks. After a day
    nobody still uses them; of a socket Linux says so."""
    used = Path("/proc/net/unix")
    in_use = used.read_text() if used.exists() else ""
    below = Path(tempfile.gettempdir())
    names = ("mrv2lab-" + 8 * "[!-]", "mrv2lab-pp-????????", "pymp-????????")
    for folder in [path for name in names for path in below.glob(name)]:
        with suppress(OSError):  # somebody else's
            held = [*folder.iterdir()]
            if folder.name.startswith("pymp"):  # an empty one Python may still fill
                is_left = bool(held and in_use) and all(p.is_socket() and str(p) not in in_use for p in held)
            else:
                is_left = {path.name for path in held} <= {"spec.pkl"}
            if is_left and time.time() - folder.lstat().st_mtime > 86400:
                shutil.rmtree(folder)


def _without_main(name: str) -> dict[str, Any]:
    told = _get_preparation_data(name)
    return {key: value for key, value in told.items() if not key.startswith("init_main_")}


def last_lines(log: Path, number: int) -> list[str]:
    """Of a file that may be larger than memory. Of an empty one on a full disk, that it is full."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 100_000))
        said = file.read().decode(errors="replace").strip().splitlines()[-number:]
    is_full = not said and shutil.disk_usage(log.parent).free < _ROOM
    return ["not a word in its log, whose disk is full; name another folder in TMPDIR"] if is_full else said


class _Call:
    """A function that runs there, and the pipe by which it tells its result."""

    def __init__(self, work: Callable[..., Any], *args: Any, outlives: bool = False):
        self.told, end = _FORKS.Pipe(duplex=False)
        self._fork = Fork(_tell, end, work, *args, modules=[work.__module__, _LATE], outlives=outlives)
        self.end = self._fork.end
        end.close()

    def result(self) -> Any:
        """What it has told, once that can be read."""
        try:
            result, error = self.told.recv()
        except (EOFError, OSError):  # which is how a part of a result ends
            wait([self._fork.sentinel])
            raise Died(self._fork.status) from None
        if error is not None:
            raise error
        return result


def _tell(end: Connection, work: Callable[..., Any], *args: Any) -> None:
    told: tuple[Any, Exception | None]
    try:
        told = work(*args), None
    except Exception as error:
        told = None, _sendable(error)
    with suppress(BrokenPipeError):  # nobody waits for it any more
        end.send(told)


def _sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; what it says, if it cannot be made again elsewhere."""
    note = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error


def _keep(
    about: tuple[Connection, int, dict[str, str], Path | None, Path | None, bool],
    work: Callable[..., Any],
    *args: Any,
) -> None:
    """A fork of this process does the work, which returns here in both: this one stays and keeps it."""
    far, bound, environment, log, folder, outlives = about
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    lifeline.lift_memory_limit()  # the server of forks may have begun within one
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
    gc.freeze()  # captures collect garbage: not among all that was imported
    if worker := os.fork():
        lifeline.keep(
            lambda: worker,
            partial(_is_gone, far, outlives),
            bound,
            pipe=None if outlives else far.fileno(),
            folder=folder,
            said=() if log is None else (1,),
        )
    os.setsid()
    lifeline.die_with_parent()
    far.close()
    work(*args)


def _is_gone(far: Connection, outlives: bool) -> bool:
    """Whether whoever asked for the work has ended without a word; with one it asks for the end."""
    try:
        if far.poll():
            far.recv()
            os.kill(os.getpid(), signal.SIGTERM)
    except EOFError:
        return not outlives
    return False
