"""Print the path of a Chromium that starts: one here, else the package manager's, else Playwright's own.

Only root may ask the package manager. Playwright downloads 170 MB into its own folder, for any user.
"""

import os
import shutil
import subprocess
import sys

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
ON_A_MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
REFUSAL = (
    "No Chromium is here and none could be fetched, so `make test` would fail at its end: install Chromium "
    "or Chrome and name it, as in MRV2LAB_CHROMIUM=/path/to/chrome make test; `make check` needs none."
)


def starts(path: str) -> bool:
    """Whether it is more than a file: Ubuntu's package is a note that points to another store."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def here() -> str | None:
    """The first that starts, of: the one that is named, those on the path, Playwright's."""
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    found = [os.environ.get("MRV2LAB_CHROMIUM"), *map(shutil.which, NAMES), ON_A_MAC, own]
    return next((path for path in found if path and starts(path)), None)


def fetch(*commands: list[str]) -> None:
    """Run each that is here, said in a line; whether it worked is seen by looking again."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for command in filter(lambda command: shutil.which(command[0]), commands):
        print("No Chromium yet:", *command, file=sys.stderr, flush=True)
        subprocess.run(command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, **quiet)


def main() -> None:
    """Look, fetch what may be fetched, look again."""
    if not here() and os.geteuid() == 0:
        fetch(
            ["apt-get", "-qq", "update"],
            ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium"],
        )
    if not here():
        fetch([sys.executable, "-m", "playwright", "install", "chromium"])
    sys.exit(REFUSAL) if (path := here()) is None else print(path)


if __name__ == "__main__":
    main()
