"""Runs the conformance suite, `tests/conformance`, against releases of vLLM, each in a process of its own.

Some 30 s of CPU for each, two thirds of them for importing vLLM.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from mrv2lab.upstream import process
from mrv2lab.upstream.releases import RELEASES, TARGET

ROOT = Path(__file__).parents[2]


@pytest.mark.source
@pytest.mark.parametrize("version", ["0.21.0", TARGET, RELEASES[-1]])
def test_the_mini_runner_conforms(version):
    command = [sys.executable, "-m", "pytest", "tests/conformance", "-q", "-p", "no:cacheprovider"]
    env = process.environment(version) | {"MRV2LAB_VLLM": version}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
