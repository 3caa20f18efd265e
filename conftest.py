"""For tests and notebooks alike: nothing that runs here touches the progress of whoever runs it."""

import os
import tempfile
from pathlib import Path
from runpy import run_path

_folder = tempfile.TemporaryDirectory(prefix="mrv2lab-")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork of a process with OpenMP's threads may wait for ever
os.environ["MRV2LAB_PROGRESS"] = f"{_folder.name}/progress.json"  # kernels inherit it

_KERNEL = Path(__file__).parent / "tests" / "forked_kernel.py"


def pytest_configure(config):
    """What kernels import took a third of the notebooks' time. The browser tests start one as users do."""
    if getattr(config.option, "nbval", False):
        from jupyter_client.provisioning import local_provisioner

        local_provisioner.launch_kernel = run_path(str(_KERNEL))["ForkedKernel"]
