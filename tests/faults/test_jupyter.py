"""The kernel of a notebook that is stopped or ended in mid-run, and a JupyterLab whose port is taken."""

import os
import re
import socket
import subprocess
import sys
import time

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

LIMIT_S = 120
CELL = 'from mrv2lab.cases import get\nprint(get("pp_eager_fallback").run("{}").verdict)'


@pytest.fixture
def kernel(faults):
    manager, client = start_new_kernel(env=os.environ | {"TMPDIR": str(faults.tmp)}, cwd=str(faults.folder))
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, variant):
    """What the cell prints, or the name of the error in which it ends."""
    told = []
    client.execute_interactive(CELL.format(variant), timeout=LIMIT_S, output_hook=told.append)
    [last] = [one["content"] for one in told if one["msg_type"] in ("stream", "error")]
    return last.get("ename") or last["text"].strip()


def stages(faults, manager):
    """The processes of both stages, once they have logs: forks of one that stays for the next ones."""
    while len([*faults.tmp.glob("mrv2lab-pp-*/*.log")]) < 2:
        time.sleep(0.02)
    kernel = psutil.Process(manager.provisioner.pid)
    return [one for one in kernel.children(recursive=True) if one.ppid() != kernel.pid]


def what_is_left(faults, processes):
    psutil.wait_procs(processes, timeout=10)
    left = [" ".join(one.cmdline()[:6]) for one in processes if one.is_running() and one.status() != "zombie"]
    return left + [folder.name for folder in faults.tmp.glob("mrv2lab-*")]


def test_a_cell_that_is_stopped_takes_its_stages_along_and_the_next_one_runs(kernel, faults):
    manager, client = kernel
    assert run(client, "eager") == "correct"
    asked = client.execute(CELL.format("persistent_buffers"))
    below = stages(faults, manager)
    manager.interrupt_kernel()
    told = client.get_shell_msg(timeout=LIMIT_S)
    while told["parent_header"]["msg_id"] != asked:
        told = client.get_shell_msg(timeout=LIMIT_S)
    left = what_is_left(faults, below)
    faults.row("a cell is interrupted while its stages run", told["content"]["ename"], left=left)
    assert told["content"]["ename"] == "KeyboardInterrupt" and left == []
    while client.get_iopub_msg(timeout=LIMIT_S)["content"].get("execution_state") != "idle":
        pass
    assert run(client, "eager") == "correct"


def test_a_kernel_that_is_killed_takes_its_stages_along(kernel, faults):
    manager, client = kernel
    client.execute(CELL.format("persistent_buffers"))
    below = stages(faults, manager)
    manager.shutdown_kernel(now=True)
    left = what_is_left(faults, below)
    faults.row("the kernel is killed while a cell's stages run", "whoever asked is gone", left=left)
    assert left == []


def test_a_port_that_is_taken(faults):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        own = {f"JUPYTER_{name}_DIR": str(faults.folder) for name in ("CONFIG", "DATA", "RUNTIME")}
        server = subprocess.Popen(
            [*(sys.executable, "-m", "jupyter", "lab", "--no-browser", "--ip=127.0.0.1", f"--port={port}")]
            + ["--allow-root"] * (os.geteuid() == 0),
            **dict(env=os.environ | own, cwd=faults.folder, stderr=subprocess.PIPE, text=True),
        )
        said = []
        for line in server.stderr:
            said.append(line)
            if re.search(rf"http://127\.0\.0\.1:(?!{port}/)\d+/lab\?token=", line):
                break
        server.terminate()
        server.communicate()
    [told] = [line for line in said if f"port {port} is already in use" in line]
    faults.row("the port of JupyterLab is taken", told.partition("] ")[2].replace(str(port), "8888"))
