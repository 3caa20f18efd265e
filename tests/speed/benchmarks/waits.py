"""What a user waits for: commands, imports and notebooks, each in a process of its own, without a GPU.

A benchmark fails where its command does not end as it must: of what is wrong there is no time.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

NOTEBOOKS = Path(find_spec("mrv2lab").origin).parents[1] / "notebooks"  # of the commit that is timed
COMMANDS = {
    "--version": (0, "--version"),
    "list": (0, "list"),
    "doctor": (0, "doctor"),
    "first verdict": (0, "run", "lora_short_circuit", "--variant", "zero_mapping", "--rung", "emulated"),
    "all verdicts": (0, "run", "--all", "--rung", "emulated"),
    "an audit": (0, "audit", "matrix", "lora_short_circuit", "--seeds", "1", "--backend", "emulated"),
}
"""Arguments of `mrv2lab`, and the exit status."""


def run(status: int, *words: str) -> float:
    """Run a command. Returns the most memory it has had, in MiB.

    Raises:
        RuntimeError: it has not ended with this exit status.
    """
    with tempfile.TemporaryFile() as told:
        pid = subprocess.Popen(words, stdout=told, stderr=told, env=os.environ | {"OMP_NUM_THREADS": "1"}).pid
        _, ended, usage = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(ended) != status:
            told.seek(0)
            raise RuntimeError(told.read().decode()[-2000:])
    return usage.ru_maxrss / 1024


class Commands:
    params: ClassVar = list(COMMANDS)
    param_names: ClassVar = ["command"]
    warm: ClassVar = set()  # what this process has run once
    timeout = 600
    number, repeat, rounds, warmup_time = 1, 5, 1, 0

    def setup(self, name):
        status, *arguments = COMMANDS[name]
        self.command = (status, sys.executable, "-m", "mrv2lab", *arguments)
        if name not in self.warm:  # bytecode and caches of a first time are nobody's wait of today
            run(*self.command)
            self.warm.add(name)

    def time_command(self, name):
        run(*self.command)

    def track_memory(self, name):
        return run(*self.command)

    track_memory.unit = "MiB"


def timeraw_import():
    return "import mrv2lab"


class Notebooks:
    params: ClassVar = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    param_names: ClassVar = ["notebook"]
    timeout = 600
    number, repeat, rounds, warmup_time = 1, 5, 1, 0

    def time_notebook(self, name):
        """All cells, one after the other, in a fresh kernel."""
        nbconvert = (sys.executable, "-m", "nbconvert", "--execute", "--to", "notebook", "--stdout")
        run(0, *nbconvert, str(NOTEBOOKS / f"{name}.ipynb"))
