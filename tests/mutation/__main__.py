"""Changes one line of the package at a time and asks the tests whether they notice: `make mutants`.

    python tests/mutation --number 300 --seed 0   # a sample, spread over the package: data/mutants.json
    python tests/mutation --again                 # what was killed before is, if its file is the same
    python tests/mutation --jobs 16               # so many at once, each in a copy of its own

cosmic-ray, whose changes these are, starts a process for each, which takes most of a minute here. This forks
from a process that has imported torch, Triton and pytest, in a copy of the checkout, and asks the tests that
reach the line. (mutmut puts functions of its own in front of ours. A package that reads its own source and
its frames does not work like that.)
"""

import argparse
import compileall
import importlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from changes import LEFT_OUT, digest, mutated, package, sample
from reach import cpu_s, lines_of, of_tests, tests_for

ROOT = Path(__file__).resolve().parents[2]
RECORD, REACHED, JUDGED = (
    ROOT / name for name in ("data/mutants.json", "out/reached.json", "out/judged.jsonl")
)
LOG = "log"  # of the tests, in the copy that they run in


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests, in CPU time, for each; twice")
    parser.add_argument("--again", action="store_true", help="only survivors, and what has changed since")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once, a processor and 2 GB each")
    options = parser.parse_args()
    if not options.again:
        JUDGED.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folders = [Path(name) / str(number) for number in range(options.jobs)]
        for folder in folders:
            copy_checkout(folder)
        move_to(folders[0])
        warm_up()
        reached = json.loads(REACHED.read_text()) if REACHED.exists() else {}
        for part in spread(folders, partial(find_reach, reached)):
            reached |= part
        save(REACHED, reached)
        reach = {file: reached[file] for file in of_tests()}
        changes = sample(options.number, options.seed)
        spread(folders, partial(find_verdicts, changes, reach, options.seconds))
        known = verdicts()
        judged = [(change, known[key_of(change)].split()[0]) for change in changes]
    save(RECORD, record(judged, options), indent=1)


def spread(folders, work):
    """What `work(number, of)` returns in a child for each folder, which it has for itself."""
    children = {}
    for number, folder in enumerate(folders):
        if (child := os.fork()) == 0:
            status = 1
            try:
                move_to(folder)
                save(folder / "found", work(number, len(folders)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children[child] = folder
    ended = [os.waitpid(child, 0)[1] for child in children]  # all, before anything is raised
    if any(ended):
        sys.exit(f"a job ended with status {max(ended)}")
    return [json.loads((folder / "found").read_text()) for folder in folders]


def find_reach(known, number, of):
    """Which lines a share of the tests' files reaches; the longest files come first."""
    files = sorted(of_tests(), key=lambda file: -known.get(file, {}).get("all_s", 0))
    return {file: lines_of(file, known.get(file, {}), told, say) for file in files[number::of]}


def find_verdicts(changes, reach, seconds, number, of):
    """Judge a share of the changes; each verdict is kept at once."""
    known = verdicts()
    for change in changes[number::of]:
        began, key = cpu_s(), key_of(change)
        if known.get(key, "survived") == "survived":
            verdict = judge(change, reach, seconds)
            with JUDGED.open("a") as file:  # a line is written at once, whoever else writes
                file.write(json.dumps([key, verdict]) + "\n")
            at = "{file}:{line} | {was} -> {is}".format(**change)
            say(f"{cpu_s() - began:.0f} s {at}: {verdict}")


def verdicts():
    """What is known of changes: {key: verdict}."""
    return dict(map(json.loads, JUDGED.read_text().splitlines())) if JUDGED.exists() else {}


def key_of(change):
    """A change, and the file that it was made in."""
    return "{} {operator} {occurrence}".format(digest(Path(change["file"]).read_bytes()), **change)


def save(path, found, **layout):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, **layout) + "\n")


def copy_checkout(folder):
    """What git knows or would take, as it is now."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    compileall.compile_dir(folder / "mrv2lab", quiet=1)


def move_to(folder):
    """Import and run what lies there from now on."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # a mutant and what it was made of may have one size and one second
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    os.environ |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def warm_up():
    """Import what every test imports, and nothing of ours but what Triton must have read before."""
    import mrv2lab  # noqa: F401

    for name in [name for name in sys.modules if name.partition(".")[0] == "mrv2lab"]:
        del sys.modules[name]
    for name in (
        "torch", "torch._dynamo", "triton.runtime.interpreter", "hypothesis", "typer.testing", "ipywidgets",
        "matplotlib.pyplot", "pydantic", "psutil", "rich.progress",
    ):  # fmt: skip
        importlib.import_module(name)


def forked(work, limit_s):
    """The exit status of `work` in a child; None if so much CPU time did not do, or it waits for nothing."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
        output = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1), os.dup2(output, 2)
        status = 99
        try:
            status = int(work())
        finally:
            os._exit(status)
    end, ended = time.monotonic() + 60 + 3 * limit_s, (0, 0)
    while ended[0] == 0 and time.monotonic() < end:
        time.sleep(0.05)
        ended = os.waitpid(child, os.WNOHANG)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if ended[0] == 0:
        os.waitpid(child, 0)
    return os.WEXITSTATUS(ended[1]) if ended[0] and os.WIFEXITED(ended[1]) else None


def told(work):
    """The last words of a child that may take its time."""
    forked(work, 1800)
    return (Path(LOG).read_text().splitlines() or ["nothing"])[-1]


def judge(change, reach, budget_s):
    """Change the copy, run tests, put it back: `killed by TEST`, `timeout` or `survived`."""
    path = Path(change["file"])
    source = path.read_text()
    for cached in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        cached.unlink()
    path.write_text(mutated(source, change))
    try:
        for tests, seconds in tests_for(change, reach, budget_s):
            ask = partial(pytest.main, ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests])
            status = forked(ask, 20 + 3 * seconds) if tests else 0
            if status is None:
                return "timeout"
            if status:
                said = Path(LOG).read_text(errors="replace")
                by = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
                return f"killed by {by[0] if by else f'status {status}'}"
        return "survived"
    finally:
        path.write_text(source)


def record(judged, options):
    """What is kept. Reasons that somebody has given for survivors stay."""
    before = json.loads(RECORD.read_text())["survivors"] if RECORD.exists() else []
    reasons = {(s["file"], s["was"], s["is"]): s["reason"] for s in before}
    survivors = [change for change, verdict in judged if verdict == "survived"]
    counts = {package(change["file"]): Counter() for change, _ in judged}
    for change, verdict in judged:
        counts[package(change["file"])][verdict] += 1
    return {
        "command": f"python tests/mutation --number {options.number} --seed {options.seed}",
        "tool": f"operators of cosmic-ray {version('cosmic-ray')}, and DropStatement",
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "left_out": LEFT_OUT,
        "number": len(judged),
        "killed_share": round(1 - len(survivors) / len(judged), 4),
        "packages": counts,
        "survivors": [s | {"reason": reasons.get((s["file"], s["was"], s["is"]), "")} for s in survivors],
    }


def commit():
    if known := os.environ.get("MRV2LAB_COMMIT"):
        return known
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return head.stdout.strip()


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
