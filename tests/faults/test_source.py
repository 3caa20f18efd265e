"""Faults of a process that runs vLLM's own classes."""

from functools import partial

import pytest

from mrv2lab.upstream import releases

pytestmark = pytest.mark.source

RUNG = "source"
PROBE = ("run", "stale_view", "--rung", "source", "--variant", "own_copies")
AT = "mrv2lab.upstream.probe:run"


@pytest.fixture
def run(faults):
    """With the user's own cache; the home is another one here."""
    releases.fetch(releases.TARGET)
    return partial(faults.run, MRV2LAB_CACHE=str(releases.cache_dir().parent))


@pytest.mark.parametrize(
    "what, told",
    [
        ("kill", "the probe's process was ended by SIGKILL"),
        ("term", "the probe's process was ended by SIGTERM"),
        ("exit", "exit status 0, and not a word"),
        ("grow", "GiB of memory, and may have 2.0"),
        ("flood", "it was ended: it had said"),
        ("memory", "MemoryError"),
    ],
)
def test_a_probe_whose_process_dies(run, what, told):
    lost = run(f"a probe: {what}", *PROBE, at=AT, what=what, MRV2LAB_MEMORY_GIB="2")
    assert lost.status == 2 and told in lost.last and lost.left == [], lost


@pytest.mark.parametrize("what, status", [("kill", -9), ("term", -15), ("interrupt", 130)])
def test_whoever_waits_for_a_probe_takes_it_along(run, what, status):
    lost = run(f"the process that waits for a probe: {what}", *PROBE, at="subprocess:Popen.wait", what=what)
    assert lost.status == status and lost.left == [], lost
