"""A real browser, and a JupyterLab that is started for the tests alone. Both stay on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "out" / "screenshots"
TOKEN = "only-for-this-test"
START_S = 60

FLAGS = [
    "--no-sandbox",  # in a container root is often the only user there is
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # any other host would be an error
]


def chromium():
    """Path of the browser. Its absence is a failure, not a reason to skip: the pages would be untested."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("MRV2LAB_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            "No Chromium is here, and the browser tests need one. On Debian or Ubuntu: apt-get install chromium. "
            "Elsewhere install Chromium or Chrome and name it: MRV2LAB_CHROMIUM=path make test",
            pytrace=False,
        )
    return found


class Watched:
    """A page, and what went wrong on it: errors on the console, and requests to other machines."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.on("request", lambda request: self._on_address(request.url))
        page.on("websocket", lambda websocket: self._on_address(websocket.url))

    def _on_console(self, message):
        if message.type == "error":
            self.complaints.append(f"console: {message.text} ({message.location.get('url')})")

    def _on_address(self, url):
        parts = urlsplit(url)
        if parts.scheme not in ("file", "data", "blob") and parts.hostname != "127.0.0.1":
            self.complaints.append(f"a request off the machine: {url}")

    def screenshot(self, name, **options):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", **options)


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A JupyterLab on loopback, its settings and its copy of the notebooks in a folder of their own."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command(folder, port), env=environment(folder), stdout=log, stderr=log)
    try:
        wait_for(f"{address}/api/status?token={TOKEN}", server, folder / "log")
        yield address
    finally:
        server.terminate()  # ends the kernels too
        server.wait(30)


def command(folder, port):
    return [
        *(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"),
        *("--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder / 'notebooks'}"),
        "--LabApp.expose_app_in_browser=True",  # tests give commands to `window.jupyterapp`
        *(["--allow-root"] if os.geteuid() == 0 else []),
    ]


def environment(folder):
    settings = folder / "settings"
    for name, text in {
        # JupyterLab asks whether it may fetch news, in front of everything else.
        "@jupyterlab/apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
    }.items():
        file = settings / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    own = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    return os.environ | {
        **{name: str(folder / name.lower()) for name in own},
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "JUPYTER_TOKEN": TOKEN,
    }


def wait_for(url, server, log):
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url):
                return
        except urllib.error.URLError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}", pytrace=False)
