"""The lifeline of a worker of the real engine: `python -m mrv2lab.live.guard LAUNCHER COMMAND... SPEC`."""

import getpass
import os
import sys
import tempfile
from pathlib import Path

from mrv2lab import lifeline
from mrv2lab.live.protocol import GUARD

FOLDER = "mrv2lab-live-"  # as `attend` calls them; others are not removed


def main(launcher: int, command: list[str]) -> None:
    """Keep a worker, whose temporary files lie beside its SPEC: so they go with the launcher's folder.

    What torch compiles stays where it is looked for next time.
    """
    folder = Path(command[-1]).parent
    if not folder.name.startswith(FOLDER):
        sys.exit(f"{folder} is no folder of a launcher's")
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    # A worker and what it starts import nothing from the folder we are in: a random.py may lie there.
    env = {"TORCHINDUCTOR_CACHE_DIR": str(compiled)} | os.environ | {"TMPDIR": str(folder)}
    lifeline.main(launcher, command, env | {GUARD: str(os.getpid()), "PYTHONSAFEPATH": "1"}, folder)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
