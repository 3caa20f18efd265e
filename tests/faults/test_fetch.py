"""Whoever fetches a release of vLLM is ended while pip waits for the wheel, one made up on loopback."""

from pathlib import Path
from runpy import run_path

import pytest

RUNG = "source"
INDEX = run_path(str(Path(__file__).parents[1] / "upstream" / "test_releases.py"))
NEW = INDEX["NEW"]
LONG_S = 60  # for a wheel, but for those who are ended


class Requests(list):
    """Makes a file when the wheel is asked for."""

    def __init__(self, file):
        self.file = file

    def append(self, path):
        super().append(path)
        if path.endswith(".whl"):
            self.file.touch()


@pytest.fixture
def index(faults):
    index = INDEX["Index"](faults.folder / "index")
    index.offer()
    index.requests = Requests(faults.folder / "asked")
    yield index
    index.server.shutdown()
    index.server.server_close()


@pytest.mark.parametrize("what, status", [("kill", -9), ("term", -15), ("interrupt", -2)])
def test_whoever_fetches_a_release_takes_pip_along(faults, index, what, status):
    cache = faults.folder / "cache"
    fetch = ("history", "stale_view", "--release", NEW)
    network = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": index.url}
    network |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "MRV2LAB_CACHE": str(cache)}
    index.delay_s = LONG_S
    fault = f"the process that fetches a release: {what}"
    at, asked = "mrv2lab.upstream.releases:_download", index.requests.file
    lost = faults.run(fault, *fetch, at=at, what=what, after=asked, **network)
    assert lost.status == status and lost.left == [], lost
    index.delay_s = 0
    faults.run(None, *fetch, IN_PLACE="1", **network)
    assert sorted(path.name for path in (cache / "vllm").iterdir()) == [".lock", NEW]
