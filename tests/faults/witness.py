"""Runs the command line as a shell does, and tells what is left when it has ended. A fork runs this file.

Given: `words` of the command line, `environment`, `folder`, `files` for its two outputs, `mounts`,
`patience_s`, and `told`. LINE in the environment is the line of this package at which Ctrl-C comes, counted
from 1 in the order in which they are run; 0 only counts, into a file.
"""

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from runpy import run_path

import psutil

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACE, PRIVATE, BIND, READ_ONLY = 0x20000, 0x44000, 0x1000, 0x21  # with MS_REMOUNT
SUBREAPER = 36
HERE = os.path.dirname(__file__)

words, environment, folder, files, mounts, patience_s, told = (
    globals()[name] for name in ("words", "environment", "folder", "files", "mounts", "patience_s", "told")
)


def be_the_command():
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    multiprocessing.current_process()._config.pop("tempdir", None)  # inherited: the command makes its own
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    mount()
    run_path(f"{HERE}/inject/sitecustomize.py")["install"]()
    run_path(f"{HERE}/../forked_server.py")["install"](words)
    sys.argv = ["mrv2lab", *words]
    from mrv2lab.cli import app

    status = 1
    if "LINE" in environment:
        sys.settrace(interrupted(int(environment["LINE"]), os.path.dirname(sys.modules["mrv2lab"].__file__)))
    try:
        app()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    os._exit(status)


def interrupted(wanted, package):
    count, has_begun = 0, False

    def of_line(frame, event, arg):
        nonlocal count
        if event == "line":
            count += 1
            if count == wanted:
                os.kill(os.getpid(), signal.SIGINT)
        return of_line

    def of_call(frame, event, arg):
        nonlocal has_begun
        has_begun |= frame.f_code.co_qualname == "_Commands.main"  # until then Python itself starts
        return of_line if has_begun and frame.f_code.co_filename.startswith(package) else None

    def tell_number():
        sys.settrace(None)
        with open("lines", "w") as file:
            file.write(str(count))

    if not wanted:
        atexit.register(tell_number)
    return of_call


def mount():
    """Folders that are small (`size`) or cannot be written (None), for this process and those below."""
    if mounts:
        done(LIBC.unshare(NEW_NAMESPACE))
        done(LIBC.mount(b"none", b"/", None, PRIVATE, None))
    for path, size in mounts:
        place = path.encode()
        if size:
            done(LIBC.mount(b"tmpfs", place, b"tmpfs", 0, f"size={size}".encode()))
        else:
            done(LIBC.mount(place, place, None, BIND, None))
            done(LIBC.mount(place, place, None, BIND | READ_ONLY, None))


def done(status):
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def below():
    """Processes that are left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return psutil.Process().children(recursive=True)


LIBC.prctl(SUBREAPER, 1, 0, 0, 0)  # orphans are adopted, and so seen
if not (command := os.fork()):
    try:
        be_the_command()
    finally:
        os._exit(99)
_, status = os.waitpid(command, 0)
ended, end = time.time(), time.monotonic() + patience_s
while below() and time.monotonic() < end:
    time.sleep(0.02)
left = [" ".join(process.cmdline()[:6]) or process.name() for process in below()]
for process in below():
    process.kill()
told.send((os.waitstatus_to_exitcode(status), ended, left))
