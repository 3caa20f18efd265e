"""Whatever a worker does, there is a result, and no process is left. The workers are small stand-ins."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from pathlib import Path

import psutil
import pytest

from mrv2lab.crash import TAIL
from mrv2lab.errors import BadInput
from mrv2lab.live import attend as attend_module
from mrv2lab.live import guard as guard_module
from mrv2lab.live.attend import attend
from mrv2lab.live.launch import UNTOLD, Ended, Job, run, run_all
from mrv2lab.live.log import LONGEST
from mrv2lab.live.protocol import GRACE_S, GUARD, TURN, await_turn, read_progress, write_job
from tests.processes import is_gone, until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 15.0

# What every stand-in begins with. `born()` notes a process id, `sleeper()` starts a child that does nothing.
PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result

job = read_job(Path(sys.argv[1]))
born = lambda pid: (Path(job.settings["pids"]) / str(pid)).touch()
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
DEAF = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
sleeper = lambda command=SLEEP, **how: born(subprocess.Popen(command, **how).pid)
born(os.getpid())
"""

BUSY = "sleeper(start_new_session=True); time.sleep(600)"
# Holds Python's global lock: no signal handler and no other thread of the worker runs.
STUCK = "sleeper(); import ctypes; ctypes.PyDLL(None).sleep(600)"
LITTERING = "import tempfile; tempfile.mkdtemp(); sleeper(start_new_session=True); time.sleep(600)"
IGNORING = (
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); sleeper(DEAF, start_new_session=True); time.sleep(600)"
)


class Stage:
    """A folder with stand-ins, and the ids of all the processes that they started."""

    def __init__(self, folder):
        self.folder = folder
        self.pids = folder / "pids"
        self.temporary = folder / "temporary"
        self.pids.mkdir()
        self.temporary.mkdir()

    def script(self, name, text):
        file = self.folder / f"{name}.py"
        file.write_text(text)
        return [sys.executable, str(file)]

    def worker(self, body):
        return self.script("worker", PRELUDE + textwrap.dedent(body))

    def job(self, variant="buggy", **more):
        settings = {"pids": str(self.pids)} | more.pop("settings", {})
        return Job("a_case", variant, settings=settings, **{"timeout_s": 30} | more)

    def born(self, count):
        """Wait until so many processes have noted themselves."""
        assert until(lambda: len(list(self.pids.iterdir())) >= count, PATIENCE_S), (
            "the stand-ins did not start"
        )

    def left(self):
        """The processes that still run after a moment."""
        until(lambda: not self.running(), 1.0)
        return self.running()

    def running(self):
        return [file.name for file in self.pids.iterdir() if not is_gone(int(file.name))]


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # stand-ins import the protocol
    monkeypatch.setattr("tempfile.tempdir", str(stage.temporary))
    yield stage
    for name in stage.left():  # of a test that failed
        os.kill(int(name), signal.SIGKILL)


def crash_of(stage, body, **job):
    """Run a worker that is to end without a result, and see that nothing of it is left."""
    ended = run(stage.job(**job), command=stage.worker(body))
    assert ended.document is None and ended.crash is not None
    assert stage.left() == []
    assert list(stage.pids.iterdir()), "the worker did not even start"
    assert list(stage.temporary.iterdir()) == []
    return ended.crash


# ---- a result ----


def test_the_document_of_a_worker_that_succeeds(stage):
    job = stage.job(env={"ONE": "1"}, settings={"depth": [2, 3]})
    body = """tell_result({"case": job.case, "settings": job.settings["depth"], "one": os.environ["ONE"],
                           "home": os.environ["HOME"], "spec": sys.argv[1]})"""
    ended = run(job, command=stage.worker(body))
    spec = Path(ended.document.pop("spec"))
    assert ended.document == {"case": "a_case", "settings": [2, 3], "one": "1", "home": os.environ["HOME"]}
    assert ended.crash is None and ended.job is job and 0 < ended.wall_s < PATIENCE_S
    assert spec.name == "SPEC.json" and spec.is_relative_to(stage.temporary)
    assert list(stage.temporary.iterdir()) == []


def test_lines_before_the_document_do_not_count(stage):
    body = """
        print('{"early": 1}', flush=True)
        subprocess.run([sys.executable, "-c", "print('a child'); print('no end', end='')"])
        tell_result({"late": 2})
        print()
    """
    assert run(stage.job(), command=stage.worker(body)).document == {"late": 2}


def test_a_claimed_stdout_holds_the_document_alone(stage):
    body = """
        result = claim_stdout()
        tell_result({"a": 1}, result)
        print("INFO 11-21 07:16:24 [core.py:1] shutting down")
        subprocess.run([sys.executable, "-c", "print('and a child')"])
    """
    assert run(stage.job(), command=stage.worker(body)).document == {"a": 1}


def test_progress_is_handed_to_the_caller(stage):
    body = """
        tell_progress(0, "importing vllm")
        print("Loading 50%|##  |", end="", file=sys.stderr, flush=True)
        tell_progress(0.35, "capturing graphs")
        print("progress of a kind", file=sys.stderr)
        tell_progress(1, "done")
        sys.exit(3)
    """
    seen = []
    ended = run(stage.job(), command=stage.worker(body), on_progress=lambda *said: seen.append(said))
    assert [said[1:] for said in seen] == [(0.0, "importing vllm"), (0.35, "capturing graphs"), (1.0, "done")]
    assert {said[0].variant for said in seen} == {"buggy"}
    assert ended.crash.log_tail == ("Loading 50%|##  |", "progress of a kind")


@pytest.mark.parametrize(
    "line", ["progress", "progress 2 x", "progress 0.5x", "in progress 0.5 x", "progress -0.5 x"]
)
def test_what_is_no_progress(line):
    assert read_progress(line) is None


# ---- no result ----


def test_a_traceback(stage):
    crash = crash_of(stage, "print('\\xff'); raise ValueError('no such rung: \\U0001f642')")
    assert (crash.reason, crash.message) == ("exit status 1", "ValueError: no such rung: \U0001f642")
    assert "Traceback (most recent call last):" in crash.log_tail


def test_bytes_that_are_no_text(stage):
    crash = crash_of(stage, "os.write(2, b'bad \\xff\\xfe byte'); sys.exit(2)")
    assert (crash.reason, crash.message) == ("exit status 2", "bad \ufffd\ufffd byte")


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGABRT", "SIGTERM"])
def test_a_signal(stage, name):
    crash = crash_of(stage, f"print('at work', flush=True); os.kill(os.getpid(), signal.{name})")
    assert (crash.reason, crash.message) == (name, "at work")


def test_a_command_that_does_not_exist(stage):
    crash = run(stage.job(), command=["no-such-program"]).crash
    assert (crash.reason, crash.message.split(":")[0]) == ("exit status 1", "FileNotFoundError")


@pytest.mark.parametrize(
    "body, message",
    [
        ("", "exit status 0 without a result, and not a word"),
        ("print('all went well')", "all went well"),
        ("tell_result({'a': 1}); print('and one thing more')", "and one thing more"),
        ("print('[1, 2]')", "[1, 2]"),
        ("""print('{"a": 1')""", "exit status 0 without a result, and not a word"),
        ("print('[' * 100_000)", "[" * LONGEST),
    ],
)
def test_exit_status_0_without_a_document(stage, body, message):
    crash = crash_of(stage, body)
    assert (crash.reason, crash.message) == ("exit status 0 without a result", message)


def test_a_document_counts_only_with_exit_status_0(stage):
    assert crash_of(stage, "tell_result({'a': 1}); sys.exit(7)").reason == "exit status 7"


# ---- bounds ----


def test_a_worker_that_hangs(stage):
    crash = crash_of(stage, "print('capturing', flush=True); sleeper(); time.sleep(600)", timeout_s=2)
    assert (crash.reason, crash.message) == ("timeout after 2 s", "capturing")


def test_a_worker_that_hangs_and_ignores_sigterm(stage):
    start = time.monotonic()
    assert crash_of(stage, IGNORING, timeout_s=2).reason == "timeout after 2 s"
    assert len(list(stage.pids.iterdir())) == 2
    assert 2 + GRACE_S < time.monotonic() - start < PATIENCE_S


def test_sigterm_comes_before_sigkill(stage):
    """And to every process, wherever it is in the tree."""
    polite = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: (print("put away", flush=True), os._exit(0)))
print("ready", flush=True)
time.sleep(600)
"""
    body = f"sleeper([sys.executable, '-c', {polite!r}], start_new_session=True); time.sleep(600)"
    assert crash_of(stage, body, timeout_s=2).log_tail == ("ready", "put away")


def test_a_worker_that_takes_too_much_memory(stage):
    """The child takes it, in a session of its own: the whole tree counts."""
    taker = "hog = bytearray(b'1') * (400 << 20); import time; time.sleep(600)"
    body = f"sleeper([sys.executable, '-c', {taker!r}], start_new_session=True); time.sleep(600)"
    start = time.monotonic()
    crash = crash_of(stage, body, memory_gib=0.3)
    assert crash.reason == "more than 0.3 GiB of memory"
    assert time.monotonic() - start < PATIENCE_S


def test_memory_within_the_bound(stage):
    body = "hog = bytearray(b'1') * (100 << 20); time.sleep(1.5); tell_result({'a': 1})"
    assert run(stage.job(memory_gib=0.3), command=stage.worker(body)).document == {"a": 1}


@pytest.mark.parametrize("where", ["stdout", "stderr"])
def test_a_flood_of_50_mb(stage, where):
    body = f"""
        line = "x" * 99 + "\\n"
        for _ in range(500): sys.{where}.write(line * 1000)
        print("RuntimeError: CUDA error: drowned", file=sys.stderr, flush=True)
        tell_result({{"a": 1}})
        sys.{where}.write(line * 1000)
        sys.exit(1)
    """
    crash = crash_of(stage, body)
    assert (crash.message, len(crash.log_tail)) == ("RuntimeError: CUDA error: drowned", TAIL)
    assert set(crash.log_tail) <= {"x" * 99, "RuntimeError: CUDA error: drowned"}


@pytest.mark.parametrize("where, bound_mib", [("stdout", 70), ("stderr", 5)])
def test_a_line_of_100_mb_fills_no_memory(stage, where, bound_mib):
    """Of stdout 16 MiB are kept, as bytes and as text, for a result may be long."""
    body = f"""
        for _ in range(100): sys.{where}.write("x" * (1 << 20))
        sys.exit(1)
    """
    tracemalloc.start()
    try:
        assert crash_of(stage, body).message == "x" * LONGEST
        assert tracemalloc.get_traced_memory()[1] < bound_mib * 2**20
    finally:
        tracemalloc.stop()


def test_a_flood_without_end_is_ended_in_time(stage):
    """Also while the caller is busy with something else. Only the latest progress waits for it."""
    body = """
        if job.variant == "fixed": tell_result({})
        while job.variant == "buggy": tell_progress(0.5, "x" * 1000)
    """
    seen = []
    jobs = [stage.job("fixed"), stage.job("buggy", timeout_s=1)]
    results = run_all(
        jobs, at_once=2, command=stage.worker(body), on_progress=lambda *said: seen.append(said)
    )
    assert next(results).document == {}
    stage.born(2)
    seen.clear()
    assert until(lambda: len(stage.running()) == 0, PATIENCE_S)
    time.sleep(0.2)
    assert next(results).crash.reason == "timeout after 1 s"
    assert 0 < len(seen) <= UNTOLD


def test_a_worker_that_closes_its_pipes(stage):
    """It is waited for without burning a core."""
    before = time.process_time()
    crash = crash_of(stage, "os.close(1); os.close(2); time.sleep(1); os._exit(0)")
    assert crash.reason == "exit status 0 without a result"
    assert time.process_time() - before < 0.5


# ---- nothing is left behind ----


@pytest.mark.parametrize(
    "end", ["tell_result({'a': 1})", "os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(600)"]
)
def test_grandchildren_go_with_the_worker(stage, end):
    """One in the group, one in a session of its own, and one whose parent has ended long since."""
    orphan = (
        "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
    )
    body = f"""
        sleeper()
        sleeper(start_new_session=True)
        born(int(subprocess.check_output([sys.executable, "-c", {orphan!r}, *SLEEP])))
        {end}
    """
    run(stage.job(timeout_s=2), command=stage.worker(body))
    assert len(list(stage.pids.iterdir())) == 4
    assert stage.left() == []


def test_an_exception_in_on_progress_ends_the_workers(stage):
    def refuse(*_):
        raise LookupError("no such bar")

    body = "sleeper(); tell_progress(0.5, 'x'); time.sleep(600)"
    start = time.monotonic()
    with pytest.raises(LookupError, match="no such bar"):
        run(stage.job(), command=stage.worker(body), on_progress=refuse)
    assert time.monotonic() - start < PATIENCE_S, "the caller heard of it only in the end"
    assert len(list(stage.pids.iterdir())) == 2 and stage.left() == []
    assert list(stage.temporary.iterdir()) == []


def test_leaving_the_loop_ends_the_workers(stage):
    body = """
        if job.variant == "buggy": tell_result({})
        else: time.sleep(600)
    """
    jobs = [stage.job("buggy"), stage.job("fixed"), stage.job("fixed")]
    for _ in run_all(jobs, at_once=2, command=stage.worker(body)):
        stage.born(2)
        break
    assert stage.left() == []


LAUNCHER = """
import signal, sys
from mrv2lab.live.launch import Job, run_all
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
pids, *command = sys.argv[1:]
jobs = [Job("a_case", str(n), settings={"pids": pids}) for n in range(4)]
list(run_all(jobs, at_once=2, command=command, on_progress=lambda job, *_: print(job.variant, flush=True)))
"""


def launched(stage, body):
    """A launcher in a process of its own, with two workers at work, each with a child. Guards come on top."""
    command = [*stage.script("launcher", LAUNCHER), str(stage.pids), *stage.worker(body)]
    env = os.environ | {"TMPDIR": str(stage.temporary)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    launcher = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    stage.born(4)
    assert not is_gone(launcher.pid)
    return launcher


@pytest.mark.parametrize("body", [BUSY, STUCK, IGNORING], ids=["busy", "stuck", "ignoring"])
def test_ctrl_c_ends_all_workers(stage, body):
    """A terminal sends it to the whole group of the launcher."""
    launcher = launched(stage, body)
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.communicate(timeout=PATIENCE_S)[1].endswith("KeyboardInterrupt\n")
    assert stage.left() == []
    assert list(stage.temporary.iterdir()) == []


@pytest.mark.parametrize("body", [LITTERING, STUCK, IGNORING], ids=["littering", "stuck", "ignoring"])
def test_a_launcher_that_is_killed_takes_all_workers_along_and_their_folders(stage, body):
    launcher = launched(stage, body)
    guards = psutil.Process(launcher.pid).children()
    launcher.kill()
    launcher.communicate()
    assert len(guards) == 2
    assert until(lambda: not stage.running(), PATIENCE_S), stage.left()
    assert until(lambda: all(is_gone(guard.pid) for guard in guards), PATIENCE_S)
    assert list(stage.temporary.iterdir()) == []


def test_a_guard_removes_no_folder_that_is_no_launchers(tmp_path):
    spec = tmp_path / "SPEC.json"
    spec.touch()
    done = subprocess.run([sys.executable, "-m", "mrv2lab.live.guard", "1", "true", str(spec)], check=False)
    assert done.returncode and spec.exists()


def test_a_worker_imports_nothing_from_the_folder_we_are_in(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(guard_module.lifeline, "main", lambda *told: given.append(told))
    guard_module.main(1, ["true", str(tmp_path / f"{guard_module.FOLDER}x" / "SPEC.json")])
    ((_, _, env, _),) = given
    assert env["PYTHONSAFEPATH"] == "1"


def test_a_guard_that_is_killed_is_a_crash_and_leaves_nothing(stage, monkeypatch):
    """The launcher steps in, for it has looked. The worker does not watch its guard here."""
    looked = stage.folder / "looked"

    class Tree(attend_module._Tree):
        def rss_bytes(self):
            found = super().rss_bytes()
            if len(self._below) == 2:  # the worker and its sleeper
                looked.touch()
            return found

    monkeypatch.setattr(attend_module, "_Tree", Tree)
    body = f"""
        sleeper(start_new_session=True)
        while not Path({str(looked)!r}).exists():
            time.sleep(0.02)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)
    """
    assert crash_of(stage, body).reason == "SIGKILL"


def test_a_worker_that_kills_its_own_group(stage):
    """The guard is not in it."""
    body = "sleeper(start_new_session=True); os.killpg(0, signal.SIGKILL)"
    assert crash_of(stage, body).reason == "SIGKILL"


def test_a_guard_that_is_asked_to_end_kills_whoever_is_deaf_and_reports_no_success(stage):
    """By itself: no launcher steps in."""
    spec = stage.folder / "mrv2lab-live-1" / "spec"
    spec.parent.mkdir()
    write_job(stage.job(), spec)
    me, command = str(os.getpid()), [*stage.worker(IGNORING), str(spec)]
    guard = subprocess.Popen([sys.executable, "-m", "mrv2lab.live.guard", me, *command])
    try:
        stage.born(2)
        guard.terminate()
        assert guard.wait(PATIENCE_S) == 1
        assert stage.left() == []
    finally:
        guard.kill()


WATCHED = """
die_with_parent()
sleeper()
time.sleep(600)
"""


@pytest.mark.parametrize(
    "wrap", [[], [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]]
)
def test_die_with_parent(stage, wrap):
    """Guard and launcher are killed at once. The worker sees to its group, a profiler in between or not."""
    spec = stage.folder / "spec"
    write_job(stage.job(), spec)
    guard = f"""
        import os, subprocess, sys, time
        command = {[*wrap, *stage.worker(WATCHED), str(spec)]!r}
        subprocess.Popen(command, start_new_session=True, env=os.environ | {{{GUARD!r}: str(os.getpid())}})
        time.sleep(600)
    """
    guard = subprocess.Popen(stage.script("guard", textwrap.dedent(guard)))
    stage.born(2)
    time.sleep(0.7)  # longer than the worker's thread sleeps
    assert len(stage.running()) == 2, "it ended although its guard lives"
    guard.kill()
    guard.wait()
    assert until(lambda: not stage.running(), 3.0)


def test_die_with_parent_does_nothing_without_a_guard(stage, monkeypatch):
    monkeypatch.delenv(GUARD, raising=False)
    body = "die_with_parent(); time.sleep(0.7); tell_result({})"
    spec = stage.folder / "spec"
    write_job(stage.job(), spec)
    command = [*stage.worker(body), str(spec)]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert json.loads(done.stdout) == {}


# ---- several ----


def test_results_come_in_the_order_of_the_jobs(stage):
    body = """
        time.sleep(float(job.variant))
        assert job.variant != "0.1"
        tell_result({"slept": job.variant})
    """
    jobs = [stage.job(slept) for slept in ("0.6", "0.1", "0.3", "0")]
    ended = list(run_all(jobs, at_once=2, command=stage.worker(body)))
    assert [e.job for e in ended] == jobs
    assert [e.document and e.document["slept"] for e in ended] == ["0.6", None, "0.3", "0"]
    assert ended[1].crash.message == "AssertionError"


def test_no_more_at_once_than_asked(stage):
    body = """
        at_work = Path(job.settings["pids"]).parent / "at_work"
        at_work.mkdir(exist_ok=True)
        mine = at_work / str(os.getpid())
        mine.touch()
        time.sleep(0.4)
        count = len(list(at_work.iterdir()))
        mine.unlink()
        tell_result({"count": count})
    """
    ended = run_all([stage.job()] * 5, at_once=2, command=stage.worker(body))
    assert max(e.document["count"] for e in ended) == 2


AHEAD = """
    from mrv2lab.live.protocol import await_turn
    begun = Path(job.settings["pids"]).parent / "begun"
    begun.mkdir(exist_ok=True)
    (begun / job.variant).touch()
    await_turn()
    at_work = begun / "at work"
    at_work.mkdir()  # fails while another one is in here
    deadline = time.monotonic() + 10
    while len(list(begun.iterdir())) < job.settings["wanted"] + 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    seen = sorted(path.name for path in begun.iterdir() if path != at_work)
    at_work.rmdir()
    tell_result({"seen": seen})
"""


def test_the_next_one_begins_and_waits_for_its_turn(stage):
    first, second = stage.job("a", settings={"wanted": 2}), stage.job("b", settings={"wanted": 2})
    ended = list(run_all([first, second], at_once=1, ahead=1, command=stage.worker(AHEAD)))
    assert [e.document for e in ended] == [{"seen": ["a", "b"]}] * 2, [e.crash for e in ended]


@pytest.mark.parametrize(("turns", "why"), [(0, "stopped"), (1, "timeout after 0 s")])
def test_a_jobs_time_begins_with_its_turn(stage, turns, why):
    stop, body = threading.Event(), 'tell_progress(0.5, "here"); time.sleep(600)'
    job, tell = stage.job(timeout_s=0), lambda *told: turns or stop.set()
    ended = attend(job, stage.worker(body), stop, tell, threading.Semaphore(turns))
    assert ended.crash.reason == why


def test_a_worker_started_by_hand_has_its_turn(monkeypatch):
    monkeypatch.delenv(TURN, raising=False)
    await_turn()


def test_one_that_dies_while_it_waits_is_a_crash_and_takes_no_turn(stage):
    body = """
        from mrv2lab.live.protocol import await_turn
        if job.variant == "dies":
            raise KeyError("early")
        await_turn()
        time.sleep(0.5)
        tell_result({})
    """
    jobs = [stage.job(name) for name in ("a", "dies", "b")]
    ended = list(run_all(jobs, at_once=1, ahead=1, command=stage.worker(body)))
    assert [e.document for e in ended] == [{}, None, {}]
    assert ended[1].crash.message == "KeyError: 'early'"


def test_wrong_input():
    with pytest.raises(BadInput, match="at_once is 0"):
        run_all([], at_once=0)
    with pytest.raises(BadInput, match="settings of a_case buggy cannot be written as JSON"):
        run(Job("a_case", "buggy", settings={"a": object()}))
    assert list(run_all([], at_once=3)) == []


def test_of_those_that_wait_none_starts_once_the_caller_has_left(monkeypatch):
    began = []

    def noted(job, command, stop, tell, turns):
        began.append(job.variant)
        if job.variant != "0":
            stop.wait()
        return Ended(job, wall_s=0)

    monkeypatch.setattr("mrv2lab.live.launch.attend", noted)
    for _ in run_all([Job("a_case", str(n)) for n in range(4)], at_once=1):
        break
    assert began in (["0"], ["0", "1"])  # the second may have begun before
