"""The lifeline of a worker of the real engine: `python -m mrv2lab.live.guard LAUNCHER_PID COMMAND...`."""

import os
import sys

from mrv2lab import lifeline
from mrv2lab.live.protocol import GUARD

if __name__ == "__main__":
    lifeline.main(int(sys.argv[1]), sys.argv[2:], env={GUARD: str(os.getpid())})
