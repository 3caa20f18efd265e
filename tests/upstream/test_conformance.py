"""Runs the conformance suite, `tests/conformance`, against releases of vLLM, each in a process of its own.

Some 30 s of CPU for each, two thirds of them for importing vLLM.
"""

import sys

import pytest

from mrv2lab.upstream import process
from mrv2lab.upstream.releases import RELEASES, TARGET


@pytest.mark.source
@pytest.mark.parametrize("version", ["0.21.0", TARGET, RELEASES[-1]])
def test_the_mini_runner_conforms(warm_releases, version):
    command = [sys.executable, "-P", "-m", "pytest", "tests/conformance", "-q", "-p", "no:cacheprovider"]
    done = warm_releases.run(command, process.environment(version) | {"MRV2LAB_VLLM": version})
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
