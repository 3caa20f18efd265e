"""Runs the conformance suite, `tests/conformance`, against releases of vLLM, each in a process of its own.

The mini runner follows the target. That what it follows is so in the other two as well, `make slow` shows.
"""

import sys

import pytest

from mrv2lab.upstream import process
from mrv2lab.upstream.releases import RELEASES, TARGET

VERSIONS = [
    pytest.param(TARGET, marks=pytest.mark.source),
    *(pytest.param(version, marks=pytest.mark.slow) for version in ("0.21.0", RELEASES[-1])),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_mini_runner_conforms(warm_releases, version):
    command = [sys.executable, "-P", "-m", "pytest", "tests/conformance", "-q", "-p", "no:cacheprovider"]
    done = warm_releases.run(command, process.environment(version) | {"MRV2LAB_VLLM": version})
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
