"""Say in one sentence why this Python or machine cannot run mrv2lab; say nothing where it can.

`make` asks each Python it finds, so this file keeps to what old ones understand.
"""

import platform
import sys

FIRST, LAST = (3, 11), (3, 13)
MACHINES = {"Linux": ("x86_64", "aarch64"), "Darwin": ("arm64",)}


def refusal(version, system, machine):
    """The sentence, or None. `version` is (major, minor); the names are those of Python's `platform`."""
    if system == "Windows":
        return "mrv2lab needs Linux or macOS: on Windows run it in WSL 2, where `wsl --install` brings Linux."
    if machine not in MACHINES.get(system, ()):
        return (
            "mrv2lab runs on Linux (x86-64, arm64) and on macOS 14 or later with Apple silicon, "
            f"and this Python is for {system} on {machine}."
        )
    if not FIRST <= version <= LAST:
        return (
            f"mrv2lab needs Python 3.11, 3.12 or 3.13, and this is {version[0]}.{version[1]}: "
            "install one of them, or name one, as in `make setup PYTHON=python3.12`."
        )
    return None


if __name__ == "__main__":
    sys.exit(refusal(sys.version_info[:2], platform.system(), platform.machine()))
