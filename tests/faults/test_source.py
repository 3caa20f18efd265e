"""Faults of a process that runs vLLM's own classes."""

import shutil
from functools import partial

import pytest

from mrv2lab.upstream import releases

pytestmark = pytest.mark.source

RUNG = "source"
PROBE = ("run", "stale_view", "--rung", "source", "--variant", "own_copies")
FIRST, LAST = "mrv2lab.upstream.platform:apply", "mrv2lab.upstream.probe:run"  # before vLLM, and with it


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
        ("grow", "GiB of host memory, and may have 2.0"),
        ("flood", "it was ended: it had said"),
        ("memory", "MemoryError"),
    ],
)
def test_a_probe_whose_process_dies(run, what, told):
    at = LAST if what == "kill" else FIRST
    started = {} if at == LAST else {"IN_PLACE": "1"}  # vLLM is imported by a process of its own
    lost = run(f"a probe: {what}", *PROBE, at=at, what=what, MRV2LAB_MEMORY_GIB="2", **started)
    assert lost.status == 2 and told in lost.last and lost.left == [], lost


@pytest.mark.parametrize("what, status", [("kill", -9), ("term", -15), ("interrupt", -2)])
def test_whoever_waits_for_a_probe_takes_it_along(run, what, status):
    lost = run(f"the process that waits for a probe: {what}", *PROBE, at="mrv2lab.forks:wait", what=what)
    assert lost.status == status and lost.left == [], lost


INFO = "*.dist-info"


def restate(release):
    """A file is altered, and RECORD states it as it is now."""
    file, record = release / "vllm" / "__init__.py", next(release.glob(INFO)) / "RECORD"
    before = releases._digest(file)
    file.write_text("import antigravity")
    record.write_text(record.read_text().replace(before, releases._digest(file)))


DAMAGES = {
    "altered, with its list of hashes": restate,
    "joined by a module of another name": lambda release: (release / "sitecustomize.py").touch(),
    "half fetched": lambda release: (release / "vllm" / "v1" / "outputs.py").unlink(),
    "poisoned": lambda release: (release / "vllm" / "__init__.py").write_text("import antigravity"),
    "of another version": lambda release: next(release.glob(INFO)).rename(release / "vllm-0.1.0.dist-info"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_release_in_the_cache_that_is_not_what_was_fetched(faults, run, damage):
    """Where it cannot be fetched again."""
    cache, unreached = faults.folder / "cache", "http://127.0.0.1:9"
    kept = releases.cached(releases.TARGET).path
    shutil.copytree(kept, cache / "vllm" / kept.name, ignore=shutil.ignore_patterns("__pycache__"))
    DAMAGES[damage](cache / "vllm" / kept.name)
    settings = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": unreached, "PIP_EXTRA_INDEX_URL": ""}
    told = run(f"a release in the cache is {damage}", *PROBE, **settings | {"MRV2LAB_CACHE": str(cache)})
    assert told.status == 2 and told.left == [] and "is damaged (" in told.last
