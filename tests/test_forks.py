"""Work in processes of its own: results, deaths, limits, and nothing that stays behind."""

import multiprocessing.connection
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from mrv2lab import forks, lifeline
from mrv2lab.errors import BadInput
from tests.processes import asleep, is_gone, until

SCRIPT = """
import sys
from pathlib import Path
from mrv2lab import forks, lifeline
with Path(sys.argv[1]).open("a") as file:
    file.write("ran\\n")
print(forks.apart(len, "four"))
"""


def test_what_is_returned_comes_back():
    assert forks.apart(max, 3, 5, limit_s=60) == 5


def test_what_raises_there_raises_here_with_the_place():
    with pytest.raises(ValueError, match="'x'") as raised:
        forks.apart(int, "x")
    assert "work(*args)" in raised.value.__notes__[0]


def test_an_error_that_cannot_be_made_again_here_is_told_in_words():
    error = "type('Odd', (Exception,), {'__init__': lambda self, a, b: None})(1, 2)"
    with pytest.raises(RuntimeError, match="Odd: "):
        forks.apart(exec, f"raise {error}")
    died = pickle.loads(pickle.dumps(forks.Died(-9)))
    assert (died.status, str(died)) == (-9, "its process ended by SIGKILL")


@pytest.mark.parametrize(
    "work, args, how",
    [
        (os.kill, (0, signal.SIGKILL), "by SIGKILL"),
        (os._exit, (9,), "with status 9"),
        (eval, ("lambda: 1",), "with status 1"),  # which cannot be pickled
    ],
)
def test_what_is_killed_or_has_no_words_has_died(work, args, how):
    with pytest.raises(forks.Died, match=f"its process ended {how}"):
        forks.apart(work, *args)


def test_at_its_limit_it_ends_with_all_that_it_has_started(tmp_path):
    pid = tmp_path / "pid"
    program = f"echo $$ > {pid}.part; mv {pid}.part {pid}; exec sleep 6000"
    for limit_s in (1, 10, 100, 1000):  # a busy machine may not have started anything at first
        with pytest.raises(TimeoutError, match=f"no result after {limit_s} s"):
            forks.apart(subprocess.run, ["sh", "-c", program], limit_s=limit_s)
        if pid.exists():
            break
    assert until(lambda: is_gone(int(pid.read_text())))  # whoever adopts it may be slow


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, tmp_path / "ran"], capture_output=True, text=True)
    assert (done.stdout, (tmp_path / "ran").read_text()) == ("4\n", "ran\n"), done.stderr


def test_a_file_of_the_folder_that_is_called_as_a_module_is_not_taken_for_it(tmp_path):
    for name in ("random", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    program = (
        "import os; from mrv2lab import forks; print(forks.apart(abs, -1), forks.apart(os.getenv, '{}'))"
    )
    program = program.format("PYTHONSAFEPATH")  # what the work starts is the work's
    script = tmp_path / "bin" / "script.py"  # Python looks beside it first, and not where it is run
    script.parent.mkdir()
    script.write_text(program)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "None"], done.stderr


def test_for_whoever_works_beside_it_the_main_module_is_what_it_was():
    class Looks:
        def __reduce__(self):
            mains.append(sys.modules["__main__"])
            return int, ()

    mains = [sys.modules["__main__"]]
    assert forks.apart(abs, Looks()) == 0
    assert len(mains) == 2 and mains[0] is mains[1]


def test_each_comes_in_order_and_one_that_dies_stops_no_other():
    assert list(forks.each(abs, [(-1,), (-2,), (-3,)], 2)) == [1, 2, 3]
    [died, well] = forks.each(eval, [("__import__('os')._exit(9)",), ("2 + 2",)], 2)
    assert (str(died), well) == ("its process ended with status 9", 4)
    with pytest.raises(ValueError, match="'x'"):
        list(forks.each(int, [("4",), ("x",)], 1))


def test_who_leaves_early_ends_those_that_run():
    results = forks.each(subprocess.run, [(["true"],), (["sleep", "6000"],)], 2)
    next(results)
    begun = sleeping()
    results.close()
    assert all(is_gone(one.pid) for one in begun)


# ---- where they have too much, or nobody is left who asked ----


@pytest.mark.parametrize(
    "grows, told",
    [
        (
            "[bytes(b'x' * 2**24) for _ in iter(int, 1)]",
            r"it had \d\.\d GiB of host memory, and may have 0\.2",
        ),
        ("[print('x' * 2**20, flush=True) for _ in range(66)]; signal.pause()", r"it had said 6\d MiB, .*64"),
        (  # what it has started
            "os.fork() and os.wait() or (x := [bytes(b'x' * 2**24) for _ in range(64)]) and signal.pause()",
            r"it had \d+\.\d GiB of .*memory, and may have 0\.2",
        ),
    ],
)
def test_what_grows_is_ended_and_the_last_line_of_its_log_says_why(grows, told, monkeypatch, tmp_path):
    monkeypatch.setenv(lifeline.MEMORY, "0.25")
    child = forks.Fork(exec, f"import os, signal; {grows}", log=tmp_path / "log")
    assert multiprocessing.connection.wait([child.sentinel], 300)
    assert re.fullmatch(f"it was ended: {told}", forks.last_lines(tmp_path / "log", 2)[-1])
    assert child.status == 1
    child.end()


@pytest.mark.parametrize("lines, has", [("Rss: 9 kB\nPss: 2 kB\nSwapPss: 3 kB", 5120), (None, 7)])
def test_memory_that_was_swapped_out_is_memory(monkeypatch, lines, has):
    def read_text(path):
        if lines is None:
            raise PermissionError
        return lines

    monkeypatch.setattr(lifeline.Path, "read_text", read_text)
    process = SimpleNamespace(pid=1, memory_info=lambda: SimpleNamespace(rss=7))
    assert lifeline._has(process) == has


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_pages_are_looked_through_only_where_the_bound_may_be_passed(monkeypatch):
    """Whoever does that holds up the process that it looks at."""
    monkeypatch.setattr(lifeline, "_below", lambda: [psutil.Process()] * 2)
    looked, own = [], lifeline._has
    monkeypatch.setattr(lifeline, "_has", lambda process: looked.append(process) or own(process))
    assert lifeline._too_much(64 << 30) == 0
    assert looked == []
    assert lifeline._too_much(1 << 20) > 1 << 20
    assert len(looked) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_what_is_shared_is_too_much_only_if_its_parts_are(monkeypatch):
    monkeypatch.setattr(lifeline, "_below", lambda: [psutil.Process()] * 2)
    monkeypatch.setattr(lifeline, "_at_most", lambda process: 2 << 20)
    monkeypatch.setattr(lifeline, "_has", lambda process: 1 << 20)
    assert lifeline._too_much(3 << 20) == 0


@pytest.mark.parametrize("status", ["VmRSS:\t 3 kB\nVmSwap:\t 4 kB\nVmPeak:\t 99 kB\n", "Name:\tzombie\n"])
def test_what_is_resident_and_what_was_swapped_out(monkeypatch, status):
    """One that has ended tells neither."""
    monkeypatch.setattr(lifeline.Path, "read_text", lambda path: status)
    monkeypatch.setattr(lifeline, "_has", lambda process: 5)
    assert lifeline._at_most(SimpleNamespace(pid=1)) == (7 << 10 if "RSS" in status else 5)


@pytest.mark.parametrize("said", ["0", "-1", "inf", "nan", "much"])
def test_a_bound_of_memory_that_is_none_is_bad_input(said, monkeypatch):
    monkeypatch.setenv(lifeline.MEMORY, said)
    with pytest.raises(BadInput, match=f"{lifeline.MEMORY}={said}: possible: a number of GiB above 0"):
        forks.apart(abs, -1)


def test_memory_that_several_share_is_counted_once(monkeypatch, tmp_path):
    monkeypatch.setenv(lifeline.MEMORY, "1.2")
    shared = "import os, time; x = b'x' * 2**29; [os.fork() or time.sleep(2) for _ in 'abc']; time.sleep(3)"
    child = forks.Fork(exec, shared, log=tmp_path / "log")
    multiprocessing.connection.wait([child.sentinel])
    assert child.status == 0, (tmp_path / "log").read_text()


def test_an_end_that_was_asked_for_leaves_the_folder(tmp_path):
    (tmp_path / "scratch").mkdir()
    child = forks.Fork(time.sleep, 6000, log=tmp_path / "scratch" / "log", folder=tmp_path / "scratch")
    child.end()
    assert child.status == 1 and (tmp_path / "scratch" / "log").exists()


def test_without_a_word_of_the_user_it_may_have_a_share_of_what_is_free(monkeypatch, tmp_path):
    monkeypatch.delenv(lifeline.MEMORY, raising=False)
    monkeypatch.setattr(lifeline.psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr(lifeline, "_CGROUP", tmp_path)
    assert lifeline.memory() == 800
    for name, text in {"max": "600", "current": "400", "stat": "file 9\ninactive_file 100\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert lifeline.memory() == 240
    (tmp_path / "memory.max").write_text("max")
    assert lifeline.memory() == 800


def sleeping(process=None):
    """What sleeps below this process, or another one, as soon as something does."""
    assert until(lambda: asleep(process or psutil.Process()))
    return asleep(process or psutil.Process())


SAYS_WHO = "echo $$ > {0}.part; mv {0}.part {0}; exec sleep 6000"
ORPHAN = f"setsid sh -c '{SAYS_WHO}' & until test -e {{0}}; do sleep 0.01; done"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a keeper adopts none")
def test_what_the_work_has_left_behind_in_a_session_of_its_own_ends_all_the_same(tmp_path):
    pid = tmp_path / "pid"
    child = forks.Fork(os.system, ORPHAN.format(pid))
    assert multiprocessing.connection.wait([child.sentinel], 300)
    child.end()
    orphan = int(pid.read_text())
    ended = until(lambda: is_gone(orphan), 10)
    if not ended:
        os.kill(orphan, signal.SIGKILL)
    assert ended


def test_a_program_that_forgets_what_it_has_started_ends(tmp_path):
    program = "import time; from mrv2lab import forks; child = forks.Fork(time.sleep, 6000)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


SLEEPS = "import os; os.execlp('sleep', 'sleep', '6000')"


def test_work_whose_keeper_is_killed_dies_with_it():
    child = forks.Fork(exec, SLEEPS)
    [work] = sleeping()
    child._child.kill()
    assert until(lambda: is_gone(work.pid))
    child.end()


def test_work_whose_keeper_is_stuck_is_ended_all_the_same(monkeypatch):
    """With what it has started in a session of its own."""
    monkeypatch.setattr(lifeline, "PATIENCE_S", 1)
    child = forks.Fork(exec, "import subprocess; subprocess.run(['sleep', '6000'], start_new_session=True)")
    [work] = sleeping()
    psutil.Process(child._child.pid).suspend()
    child.end()
    assert until(lambda: is_gone(work.pid))


def test_ctrl_c_while_it_starts_leaves_none(monkeypatch):
    def started(*args):
        begun(*args)
        sleeping()
        raise KeyboardInterrupt

    begun = forks._started
    with monkeypatch.context() as patch:
        patch.setattr(forks, "_started", started)
        with pytest.raises(KeyboardInterrupt) as kept:  # with its traceback, as a notebook keeps it
            forks.apart(exec, SLEEPS)
    assert until(lambda: not asleep(psutil.Process()))
    assert kept.tb


def test_a_folder_for_temporary_files_with_too_long_a_path_is_named(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / ("x" * 100)
    folder.mkdir()
    script.write_text("from mrv2lab import forks\nforks.apart(abs, -1)")
    done = subprocess.run(
        [sys.executable, script], env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True
    )
    assert f"BadInput: {folder}: too long a path for a socket" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_what_a_terminal_sends_to_all_leaves_no_work(number, tmp_path):
    """Nor the folder, where nobody is left to remove it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    handler = "default_int_handler" if number == signal.SIGINT else "SIG_DFL"  # a background job ignores it
    run = (
        "import signal, pathlib; from mrv2lab import forks;"
        f"signal.signal({number}, signal.{handler});"
        f"forks.command(['sleep', '6000'], pathlib.Path('{folder}'), {{}})"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", run], start_new_session=True, stderr=subprocess.DEVNULL
    )
    own = psutil.Process(launcher.pid)
    work = sleeping(own)
    os.killpg(launcher.pid, number)
    launcher.wait()
    assert until(lambda: all(is_gone(one.pid) for one in work))
    assert until(lambda: folder.exists() == (number == signal.SIGINT))


def test_of_a_log_that_is_empty_on_a_full_disk_it_is_told_that_it_is_full(tmp_path, monkeypatch):
    (tmp_path / "log").touch()
    assert forks.last_lines(tmp_path / "log", 1) == []
    monkeypatch.setattr(forks.shutil, "disk_usage", lambda folder: SimpleNamespace(free=0))
    [told] = forks.last_lines(tmp_path / "log", 1)
    assert "disk is full; name another folder in TMPDIR" in told
    (tmp_path / "log").write_text("something\n")
    assert forks.last_lines(tmp_path / "log", 1) == ["something"]


@pytest.mark.parametrize("gib, told", [(8.12, "8.1"), (1500.04, "1500.0"), (0.04, "0.04"), (0.0012, "0.001")])
def test_a_bound_is_never_told_as_nothing(gib, told):
    assert lifeline._gib(int(gib * 2**30)) == told


def test_of_a_command_its_status_and_its_last_words_are_told(tmp_path):
    program = "import os, sys; print('first'); print(os.environ['TOLD'], file=sys.stderr); sys.exit(3)"
    told = forks.command([sys.executable, "-c", program], tmp_path, {"TOLD": "enough"})
    assert told == (3, "enough")
    (tmp_path / "log").unlink()
    killed = forks.command(["sh", "-c", "kill -KILL $$"], tmp_path, {})
    assert killed == (-9, "exit status -9, and not a word")


def test_a_command_at_its_limit_is_ended(tmp_path):
    with pytest.raises(TimeoutError):
        forks.command(["sh", "-c", "sleep 6000"], tmp_path, {}, 2)
    assert not asleep(psutil.Process())


PARENT = """
import os, sys, time
from pathlib import Path
from mrv2lab import forks, lifeline
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "scratch").mkdir()
    child = forks.Fork(eval, sys.argv[2], log=folder / "scratch" / "log", folder=folder / "scratch")
    while not (folder / "go").exists():
        time.sleep(0.01)
    exec(sys.argv[3])
    (folder / "gone").touch()
    time.sleep(6000)
"""
DEAF = (
    "import ctypes, signal, subprocess, tempfile\n"
    "tempfile.mkdtemp()\n"
    "subprocess.Popen(['sleep', '6000'], start_new_session=True)\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
    "ctypes.PyDLL(None).sleep(6000)"
)


@pytest.mark.parametrize("before", ["", "child._lifeline.send(None)", "os.fork() or time.sleep(6000)"])
def test_what_is_deaf_ends_with_a_parent_that_is_killed_and_so_does_its_folder(tmp_path, before):
    """Also where that one had begun to end it, or has forked a process that lives on."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, script, tmp_path, f"exec({DEAF!r})", before])
    own = psutil.Process(parent.pid)
    sleeping(own)
    all_below = own.children(recursive=True)
    work = [one for one in all_below if one.ppid() != own.pid]  # others are Python's own
    assert len(work) >= 3
    (tmp_path / "go").touch()
    assert until((tmp_path / "gone").exists)
    lives_on = [one for one in own.children() if one not in all_below]
    parent.kill()
    parent.wait()
    assert until(lambda: all(is_gone(one.pid) for one in work) and not (tmp_path / "scratch").exists())
    assert len(lives_on) == before.startswith("os.fork") and not any(is_gone(one.pid) for one in lives_on)
    for one in lives_on:
        one.kill()


def test_folders_that_may_not_be_written_are_made_so_before_they_go(tmp_path, monkeypatch):
    """Root may remove them as they are, so what is asked is what they are when they go."""
    locked = tmp_path / "work" / "locked"
    locked.mkdir(parents=True)
    locked.chmod(0o500)
    modes = []
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: modes.append(locked.stat().st_mode & 0o777))
    lifeline._remove(tmp_path / "work")
    assert modes == [0o700]


def test_a_link_to_a_folder_goes_and_what_it_leads_to_stays_as_it_is(tmp_path):
    work, outside = tmp_path / "work", tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    work.mkdir()
    outside.chmod(0o500)
    (work / "link").symlink_to(outside)
    (work / "nowhere").symlink_to(tmp_path / "not there")
    lifeline._remove(work)
    assert not work.exists()
    assert (outside / "inner").exists() and outside.stat().st_mode & 0o777 == 0o500


def test_of_work_that_had_no_keeper_yet_the_folder_goes_a_day_later(tmp_path, monkeypatch):
    monkeypatch.setattr(forks.tempfile, "tempdir", str(tmp_path))
    names = (
        "mrv2lab-pp-old_task",
        "mrv2lab-pp-no__task",
        "mrv2lab-pp-new_task",
        "mrv2lab-pp-no_tasks",
        "mrv2lab-pp-clone",
        "mrv2lab-no_probe",
    )
    old, empty, new, others, clone, probe = (tmp_path / name for name in names)
    for folder in (old, empty, new, others, clone, probe):
        folder.mkdir()
    for folder in (old, new, others, clone):
        (folder / "spec.pkl").touch()
    (others / "mine").touch()
    for folder in (old, empty, others, clone, probe):
        os.utime(folder, (0, 0))
    forks._remove_what_was_left.__wrapped__()
    assert {*tmp_path.iterdir()} == {new, others, clone} and len([*others.iterdir()]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing says which sockets are in use")
def test_a_folder_of_pythons_that_a_killed_process_has_left_goes_after_a_day(tmp_path, monkeypatch):
    monkeypatch.setattr(forks.tempfile, "gettempdir", lambda: str(tmp_path))
    left, empty, new, used, others = (tmp_path / f"pymp-{letter * 8}" for letter in "abcde")
    for folder in (left, empty, new, used, others):
        folder.mkdir()
    sockets = []
    for folder in (left, new, used):
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(str(folder / "listener-abcdefgh"))
    sockets[0].close()
    (others / "mine").touch()
    for folder in (left, empty, used, others):
        os.utime(folder, (0, 0))
    forks._remove_what_was_left.__wrapped__()
    assert {*tmp_path.iterdir()} == {empty, new, used, others}  # Python may still fill an empty one
    for each in sockets:
        each.close()


# ---- how a keeper ends what it keeps, without processes ----


def test_what_is_asked_to_end_has_a_second_for_it(monkeypatch):
    now, sent = [0.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: now.append(now.pop() + s))
    monkeypatch.setattr(lifeline, "time", clock)
    monkeypatch.setattr(lifeline, "_send", lambda number, worker: sent.append((number, now[0])))
    monkeypatch.setattr(lifeline, "_below", lambda: [n for n, _ in sent if n == signal.SIGKILL] == [])
    lifeline._end_all(1)
    [(asks, at_first), (kills, then)] = sent
    assert (asks, at_first, kills) == (signal.SIGTERM, 0, signal.SIGKILL) and 1 <= then <= 1.2


def test_a_keeper_that_ends_by_a_signal_leaves_no_core_of_its_own(monkeypatch):
    done = []
    monkeypatch.setattr(lifeline.resource, "setrlimit", lambda *limit: done.append(limit))
    monkeypatch.setattr(lifeline.signal, "signal", lambda *given: done.append(given))
    monkeypatch.setattr(lifeline.os, "kill", lambda pid, number: done.append(number))
    monkeypatch.setattr(lifeline.os, "_exit", lambda status: done.append("exit"))
    lifeline._leave(-signal.SIGABRT)
    no_core = (lifeline.resource.RLIMIT_CORE, (0, 0))
    assert done == [no_core, (signal.SIGABRT, signal.SIG_DFL), signal.SIGABRT, "exit"]
