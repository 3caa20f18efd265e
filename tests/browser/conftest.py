"""A real browser, and a JupyterLab that is started for the tests alone. Both stay on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "out" / "screenshots"
TOKEN = "only-for-this-test"
START_S = 60
PAGE_S = 120

FLAGS = [
    "--no-sandbox",  # in a container root is often the only user there is
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # any other host would be an error
]

OPENED = """async () => {
    while (!window.jupyterapp) await new Promise(resolve => setTimeout(resolve, 50));
    const app = window.jupyterapp;
    await app.restored;
    while (!app.shell.currentWidget?.sessionContext) await new Promise(resolve => setTimeout(resolve, 50));
    const {context, sessionContext} = app.shell.currentWidget;
    await context.ready;
    await sessionContext.ready;
    const kernelIsIdle = () => sessionContext.session?.kernel?.status === 'idle';
    while (!kernelIsIdle()) await new Promise(resolve => setTimeout(resolve, 50));
}"""
RUN_ALL = """() => {
    window.ran = window.jupyterapp.commands.execute('notebook:run-all-cells');
}"""
CELLS = "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells"
SHUT_DOWN = "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"
CHANGE_THEME = """async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', {theme});
    const isShown = () => document.body.dataset.jpThemeName === theme;
    const splashIsGone = () => !document.getElementById('jupyterlab-splash');
    while (!isShown() || !splashIsGone()) await new Promise(resolve => setTimeout(resolve, 20));
}"""
# Clicks, and counts the milliseconds until the panel names the variant in its verdict and shows its picture.
CLICK_AND_WAIT = """async ([button, variant]) => {
    const panel = button.closest('.mrv2lab');
    const start = performance.now();
    button.click();
    const there = () => panel.querySelector('[data-verdict]')?.textContent.startsWith(variant)
        && panel.querySelector('svg.mrv2lab')?.ariaLabel.includes(variant);
    while (!there()) {
        if (performance.now() - start > 20000) throw new Error('the panel does not show ' + variant);
        await new Promise(resolve => setTimeout(resolve, 5));
    }
    return performance.now() - start;
}"""


def chromium():
    """Path of the browser. Its absence is a failure, not a reason to skip: the pages would be untested."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("MRV2LAB_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            "No Chromium is here, and the browser tests need one. On Debian or Ubuntu: apt-get install "
            "chromium. Elsewhere install Chromium or Chrome and name it: MRV2LAB_CHROMIUM=path make test",
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


class Notebook:
    """A notebook in a tab; its cells have been told to run."""

    def __init__(self, watched, url):
        self.watched, self.page = watched, watched.page
        self.page.set_default_timeout(PAGE_S * 1000)
        self.page.goto(url)
        self._evaluate(OPENED)
        self.page.evaluate(RUN_ALL)

    def _evaluate(self, function):
        """What a function of JavaScript promises; Playwright itself would wait for ever."""
        late = f"reject(new Error('no answer within {PAGE_S} s: {self.page.url}'))"
        deadline = f"new Promise((_, reject) => setTimeout(() => {late}, {PAGE_S * 1000}))"
        return self.page.evaluate(f"() => Promise.race([({function})(), {deadline}])")

    @cached_property
    def cells(self):
        """The code cells, after all have run."""
        assert self._evaluate("() => window.ran"), "JupyterLab did not run all cells"
        return [cell for cell in self.page.evaluate(CELLS) if cell["cell_type"] == "code"]

    def click(self, button, variant):
        """Click a button of a panel; returns the milliseconds until it shows the variant."""
        return self.page.evaluate(CLICK_AND_WAIT, [button.element_handle(), variant])

    def screenshots(self, name):
        """What is in view, in both themes."""
        for theme in ("Light", "Dark"):
            self.page.evaluate(CHANGE_THEME, f"JupyterLab {theme}")
            self.watched.screenshot(f"{name}-{theme.lower()}")

    def close(self):
        self.page.evaluate(SHUT_DOWN)
        self.page.close()


class Workbook:
    """Opens notebooks in order. While one is looked at, the next one runs already: there are two cores."""

    def __init__(self, new_page, url, names):
        self._new_page, self._url, self._waiting = new_page, url, list(names)
        self._open = {}

    def __getitem__(self, name):
        self._start(name)
        notebook = self._open[name]
        if self._waiting:
            self._start(self._waiting[0])
        return notebook

    def _start(self, name):
        if name not in self._open:
            self._waiting.remove(name)
            self._open[name] = Notebook(self._new_page(), self._url(name))

    def close(self, name):
        self._open.pop(name).close()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright  # where no browser test runs, nobody needs it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def watch():
    """Makes a page a watched one."""
    return Watched


@pytest.fixture(scope="module")
def workbook(browser, lab, request):
    """The notebooks that tests have as their parameter `name`, and no others: with -k, say, few are."""
    called = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    context = browser.new_context(viewport={"width": 1400, "height": 1500})
    names = sorted({call.params["name"] for call in called if "name" in call.params})
    yield Workbook(lambda: Watched(context.new_page()), lab, names)
    context.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A JupyterLab on loopback, its settings and its copy of the notebooks in a folder of their own.

    What it gives is a function from the name of a notebook to its address.
    """
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
        # A workspace for each: JupyterLab lets no two tabs have the same one.
        yield lambda name: f"{address}/doc/workspaces/{name}/tree/{name}.ipynb?token={TOKEN}&reset"
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
        "MRV2LAB_CACHE": str(folder / "cache"),  # no release of vLLM: as on a machine without a network
        "OMP_NUM_THREADS": "1",  # two kernels run side by side
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
