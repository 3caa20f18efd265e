"""A real browser, and a JupyterLab that is started for the tests alone. Both stay on this machine."""

import ast
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from stored import VIEW, WIDGET

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
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
    "--disable-gpu",  # or a process emulates one
    "--animation-duration-scale=0",
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
KERNEL = "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
OPEN = """([path, id]) => {
    window.jupyterapp.commands.execute('docmanager:open', {path, kernel: {id}});
}"""
RUN_ALL = """() => {
    window.ran = window.jupyterapp.commands.execute('notebook:run-all-cells');
}"""
RUN = """cells => {
    const {content} = window.jupyterapp.shell.currentWidget;
    content.deselectAll();
    content.activeCellIndex = cells[0];
    for (const cell of cells) content.select(content.widgets[cell]);
    window.ran = window.jupyterapp.commands.execute('notebook:run-cell');
}"""
CELLS = "() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.toJSON().cells"
ARE_THERE = """widgets => widgets ===
    document.querySelectorAll('.jp-OutputArea-output:has(.jupyter-widgets)').length
"""
# Not before all that the kernel was asked for is done. Of what comes later JupyterLab complains on the
# console: "Canceled future for ... message before replies were done", "Kernel subshells are not supported".
CLOSE = """async () => {
    const notebook = window.jupyterapp.shell.currentWidget, {kernel} = notebook.sessionContext.session;
    await kernel.info;
    await Promise.allSettled(Array.from(kernel._futures.values(), future => future.done));
    notebook.dispose();
}"""
CHANGE_THEME = """async theme => {
    await window.jupyterapp.commands.execute('apputils:change-theme', {theme});
    const isShown = () => document.body.dataset.jpThemeName === theme;
    const splashIsGone = () => !document.getElementById('jupyterlab-splash');
    while (!isShown() || !splashIsGone()) await new Promise(resolve => setTimeout(resolve, 20));
}"""
# For kernels: what a case shows is shown by `pytest --nbval`, here it has to be shown at all.
SMALL = """
from mrv2lab.cases import CASES
for case in CASES.values():
    for name, limit in case.limits.items():
        if name in ("num_layers", "num_steps", "batch_size"):  # a batch of one is in no panel of 17
            case.limits[name] = limit._replace(default=max(limit.least, 2 * (name == "batch_size")))
"""
# Clicks, and counts the milliseconds until the panel names the variant in its verdict and shows its picture,
# which a crash has none of.
CLICK_AND_WAIT = """async ([button, variant]) => {
    const panel = button.closest('.mrv2lab');
    const start = performance.now();
    button.click();
    const there = () => {
        const verdict = panel.querySelector('[data-verdict]'), picture = panel.querySelector('svg.mrv2lab');
        if (!verdict?.textContent.startsWith(variant)) return false;
        return picture ? picture.ariaLabel.includes(variant) : verdict.dataset.verdict === 'crash';
    };
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
        """To be looked at: `MRV2LAB_SCREENSHOTS=1 pytest -m browser`."""
        if os.environ.get("MRV2LAB_SCREENSHOTS"):
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=SCREENSHOTS / f"{name}.png", **options)


def names(tree, context):
    """What is read in a piece of code, or bound in it, by name."""
    found = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }
    if context is ast.Store:
        binding = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.alias)]
        found |= {getattr(node, "asname", None) or node.name for node in binding}
    return found


def shows_widget(cell):
    outputs = cell.get("outputs", ())
    return any(VIEW in output.get("data", {}) or WIDGET in output.get("metadata", {}) for output in outputs)


def cells_for_widgets(path):
    """Numbers of the cells that show a widget, and of those that bind what they read, and so on."""
    chosen, read = [], set()
    for number, cell in [*enumerate(nbformat.read(path, 4).cells)][::-1]:
        if cell.cell_type == "code" and not cell.source.startswith("%"):
            tree = ast.parse(cell.source)
            if shows_widget(cell) or names(tree, ast.Store) & read:
                chosen.append(number)
                read |= names(tree, ast.Load)
    return chosen[::-1]


def answer(page, function):
    """What a function of JavaScript promises; Playwright itself would wait for ever."""
    late = f"reject(new Error('no answer within {PAGE_S} s: {page.url}'))"
    deadline = f"new Promise((_, reject) => setTimeout(() => {late}, {PAGE_S * 1000}))"
    return page.evaluate(f"() => Promise.race([({function})(), {deadline}])")


class Workbook:
    """One tab with JupyterLab in it, and one kernel, for one notebook after the other.

    `pytest --nbval` runs every cell of each. Here widgets have to answer: what they do not need is not run.
    """

    def __init__(self, page, url):
        self.watched, self.page = Watched(page), page
        self._url, self._kernel = url, None
        page.set_default_timeout(PAGE_S * 1000)

    def open(self, name, whole=False):
        """Open a notebook and run the cells that its widgets need, or all."""
        self.watched.complaints.clear()
        # All that is in view is drawn again and again.
        height = 1500 if os.environ.get("MRV2LAB_SCREENSHOTS") else 700
        self.page.set_viewport_size({"width": 1400, "height": height})
        if self._kernel is None:
            self.page.goto(self._url(name))
        else:
            self.page.evaluate(OPEN, [f"{name}.ipynb", self._kernel])
        answer(self.page, OPENED)
        self._kernel = self.page.evaluate(KERNEL)
        self._cells = cells = cells_for_widgets(NOTEBOOKS / f"{name}.ipynb")
        if whole or cells:
            self.page.evaluate(*([RUN_ALL] if whole else [RUN, cells]))
            assert answer(self.page, "() => window.ran"), "JupyterLab did not run all cells"
        self.ran = [cell for n, cell in enumerate(self.page.evaluate(CELLS)) if whole or n in cells]
        self.page.wait_for_function(ARE_THERE, arg=sum(map(shows_widget, self.ran)))

    def begin_again(self):
        """Run the cells that its widgets need once more, and wait for nothing."""
        self.page.evaluate(RUN, self._cells)

    def restart(self):
        """Restart the kernel, which then knows no widget any more."""
        answer(self.page, KERNEL.replace(".id", ".restart()"))

    def open_again(self, name):
        """Save the notebook, and open it with the kernel restarted, nothing run."""
        answer(self.page, "() => window.jupyterapp.shell.currentWidget.context.save()")
        self.restart()
        self.close()
        self.page.evaluate(OPEN, [f"{name}.ipynb", self._kernel])
        answer(self.page, OPENED)

    @property
    def cells(self):
        """The code cells as they are now."""
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
        """Close the notebook that is open; the kernel stays."""
        answer(self.page, CLOSE)


@contextmanager
def launched():
    from playwright.sync_api import sync_playwright  # where no browser test runs, nobody needs it

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def watch():
    """Makes a page a watched one."""
    return Watched


@pytest.fixture(scope="module")
def workbook(browser, lab):
    context = browser.new_context(reduced_motion="reduce")
    yield Workbook(context.new_page(), lab)
    context.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """A JupyterLab with a copy of the notebooks: a function from the name of one to its address."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "jupyter_data_dir").mkdir()
    startup = folder / "ipythondir" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "small.py").write_text(SMALL)
    signs = NotebookNotary(data_dir=str(folder / "jupyter_data_dir"))
    (folder / "notebooks").mkdir()
    for path in NOTEBOOKS.glob("*.ipynb"):  # what is stored shall look as what is run
        notebook = nbformat.read(path, 4)
        for cell in filter(shows_widget, notebook.cells):
            cell.outputs = []
        nbformat.write(notebook, folder / "notebooks" / path.name)
        signs.sign(notebook)
    with served(folder) as (_, address):
        yield address


@contextmanager
def served(folder, **more):
    """A JupyterLab on loopback for the notebooks in a folder, in which its settings and its log lie too.

    Args:
        more: added to its environment.

    Yields:
        Its process, and a function from the name of a notebook to its address.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        given = environment(folder) | more
        server = subprocess.Popen(command(folder, port), env=given, stdout=log, stderr=log)
    try:
        wait_for(f"{address}/api/status?token={TOKEN}", server, folder / "log")
        yield server, lambda name: f"{address}/doc/tree/{name}.ipynb?token={TOKEN}&reset"
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
        "@jupyter-widgets/jupyterlab-manager/plugin": '{"saveState": true}',  # as `make lab` has it
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
        "OMP_NUM_THREADS": "1",
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
