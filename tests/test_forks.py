"""Work in processes of its own: results, deaths, limits, and nothing that stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mrv2lab import forks

SCRIPT = """
import sys
from pathlib import Path
from mrv2lab import forks
with Path(sys.argv[1]).open("a") as file:
    file.write("ran\\n")
print(forks.apart(len, "four"))
"""


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_what_is_returned_comes_back():
    assert forks.apart(max, 3, 5, limit_s=60) == 5


def test_what_raises_or_is_killed_has_died():
    for work, args, status in ((int, ("x",), 1), (os.kill, (0, signal.SIGKILL), -signal.SIGKILL)):
        with pytest.raises(forks.Died) as died:
            forks.apart(work, *args)
        assert died.value.status == status


def test_at_its_limit_it_ends_with_all_that_it_has_started(tmp_path):
    program = f"echo $$ > {tmp_path}/pid; exec sleep 600"
    with pytest.raises(TimeoutError, match="no result after 5 s"):
        forks.apart(subprocess.run, ["sh", "-c", program], limit_s=5)
    pid = int((tmp_path / "pid").read_text())
    while not is_gone(pid):  # whoever adopts it may be slow
        time.sleep(0.01)


def test_a_script_without_a_guard_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, tmp_path / "ran"], capture_output=True, text=True)
    assert (done.stdout, (tmp_path / "ran").read_text()) == ("4\n", "ran\n"), done.stderr
