"""A process that has imported the package can fork others that use a GPU."""

import subprocess
import sys

import pytest


@pytest.mark.gpu
def test_importing_leaves_the_gpu_to_forks():
    program = (
        "import os, torch, mrv2lab.audit, mrv2lab.cases\n"
        "if os.fork() == 0:\n"
        "    print(float(torch.ones(3, device='cuda').sum()), flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["3.0"], told.stderr
