"""The page of a notebook is closed while its cell runs: what goes on, and what JupyterLab's end leaves."""

import time
from pathlib import Path
from runpy import run_path

import nbformat
import psutil
import pytest

pytestmark = pytest.mark.browser

LAB = run_path(str(Path(__file__).parents[1] / "browser" / "conftest.py"))
REPLAY = "mrv2lab.graphs.emulated:EmulatedGraph._replay"
CASE = 'from mrv2lab.cases import get\nverdict = get("pp_eager_fallback").run("persistent_buffers").verdict'
LIMIT_S = 120


@pytest.fixture(scope="module")
def lab(make_faults, tmp_path_factory):
    """A JupyterLab with one notebook, whose case stops at a replay: its faults, process and address."""
    with make_faults(tmp_path_factory.mktemp("lab")) as faults:
        (faults.folder / "notebooks").mkdir()
        cells = [nbformat.v4.new_code_cell(source) for source in (CASE, "print(verdict)")]
        about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=about)
        nbformat.write(notebook, faults.folder / "notebooks" / "one.ipynb")
        with LAB["served"](faults.folder, **faults.environment(REPLAY, "stop")) as (server, address):
            process = psutil.Process(server.pid)
            yield faults, process, address("one")
            below = process.children(recursive=True) if process.is_running() else []
        psutil.wait_procs(below, timeout=30)
        assert [process for process in below if process.is_running()] == [] == faults.in_tmp()


def opened(browser, address):
    page = browser.new_context().new_page()
    page.set_default_timeout(LIMIT_S * 1000)
    page.goto(address)
    LAB["answer"](page, LAB["OPENED"])
    return page


def ran_and_closed(browser, address, faults, server):
    """Run the case in a page that is closed once a stage has stopped; returns all that then runs."""
    page, end = opened(browser, address), time.monotonic() + LIMIT_S
    page.evaluate(LAB["RUN"], [0])
    while not (below := server.children(recursive=True)) or not any(map(is_stopped, below)):
        assert time.monotonic() < end, (faults.folder / "log").read_text()
        time.sleep(0.05)
    page.context.close()
    return below


def is_stopped(process):
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def what_is_left(faults, server, below):
    """When JupyterLab was told to end."""
    server.terminate()
    _, left = psutil.wait_procs([server, *below], timeout=30)
    return [" ".join(process.cmdline()[:6]) for process in left] + faults.in_tmp()


def test_a_page_that_is_closed_can_be_opened_again_and_its_cell_has_gone_on(faults, browser, lab):
    inside, server, address = lab
    [stopped] = filter(is_stopped, ran_and_closed(browser, address, inside, server))
    stopped.resume()
    page = opened(browser, address)  # once the kernel is idle
    page.evaluate(LAB["RUN"], [1])
    assert LAB["answer"](page, "() => window.ran")
    [*_, told] = page.evaluate(LAB["CELLS"])
    page.context.close()
    shown = told["outputs"][0].get("text") or told["outputs"][0]["ename"]
    fault = "the browser is closed while a cell's stages run, and opened again"
    faults.row(fault, f"the cell has gone on; the next one says: {shown}", left=inside.in_tmp())
    assert shown == "correct\n" and inside.in_tmp() == []


def test_a_jupyterlab_that_is_ended_takes_the_run_of_a_closed_page_along(faults, browser, lab):
    inside, server, address = lab
    inside.fired.unlink(missing_ok=True)  # it stops once more
    below = ran_and_closed(browser, address, inside, server)
    start = time.monotonic()
    left = what_is_left(inside, server, below)
    fault = "the browser is closed while a cell's stages run, then JupyterLab is ended"
    faults.row(fault, "whoever asked is gone", seconds=time.monotonic() - start, left=left)
    assert left == []
