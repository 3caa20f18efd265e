"""For tests and notebooks alike: nothing that runs here touches the progress of whoever runs it."""

import os
import sys
import tempfile
from pathlib import Path
from runpy import run_path

_folder = tempfile.TemporaryDirectory(prefix="mrv2lab-")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork of a process with OpenMP's threads may wait for ever
os.environ["MRV2LAB_PROGRESS"] = f"{_folder.name}/progress.json"  # kernels inherit it

# Of `jsonschema`, for formats that no notebook has: a second, to make the grammar of all addresses there are.
sys.modules.setdefault("rfc3987_syntax", None)

_TESTS = Path(__file__).parent / "tests"


def pytest_configure(config):
    """What kernels import took a third of the notebooks' time. The browser tests start one as users do."""
    if getattr(config.option, "nbval", False):  # not in pyproject.toml: tests alone do without that plugin
        config.option.nbval_current_env = True
        config.option.nbval_cell_timeout = 120
        config.option.nbval_sanitize_with = str(_TESTS / "nbval.cfg")
        from jupyter_client.provisioning import local_provisioner

        local_provisioner.launch_kernel = run_path(str(_TESTS / "forked_kernel.py"))["ForkedKernel"]
