"""vLLM's engine while it serves: with nothing attached, with a guard, and with audits that go on, in turn.

Each is an engine in a process of its own (`live.in_turn`). All are there at once, and only one serves.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from mrv2lab.bench_engine import BESIDES, MODELS
from mrv2lab.errors import BadInput
from mrv2lab.live import launch
from mrv2lab.live.in_turn import LOADS
from mrv2lab.live.models import make_qwen3_config
from mrv2lab.live.releases import ENGINES, installed
from mrv2lab.live.rung import ENVIRONMENT, missing_gpus
from mrv2lab.timed import Row, latency

__all__ = ["BESIDES", "WAYS", "rows"]

WAYS = {"off": "", "guard": "MRV2LAB_GUARD=warn", "every=1000": "MRV2LAB_AUDIT=every=1000"}
"""What is set for each engine. The others are held against the first one."""

NOTHING = {"MRV2LAB_GUARD": "", "MRV2LAB_AUDIT": "", "VLLM_LOGGING_LEVEL": "INFO"}
COMMAND = (sys.executable, "-m", "mrv2lab.live.in_turn")


def rows() -> Iterator[Row]:
    """Time all loads both ways. BadInput: what this machine lacks."""
    release = [] if installed() in ENGINES else [f"vllm {' or '.join(ENGINES)}"]
    if lacks := release + missing_gpus(1):
        raise BadInput(f"bench server needs {' and '.join(lacks)}")
    return _rows()


def _rows() -> Iterator[Row]:
    documents: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mrv2lab-bench-") as folder:
        file = make_qwen3_config(Path(folder, "0.6B")) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | MODELS["0.6B"]))
        jobs = [job(folder, way) for way in WAYS]
        for ended in launch.run_all(jobs, at_once=len(jobs), command=COMMAND):
            if ended.document is not None:
                documents[ended.job.variant] = ended.document
            elif ended.crash is not None:
                crash = ended.crash
                warnings.warn(f"{ended.job.variant}: {crash.reason}: {crash.message}", stacklevel=2)
    for way, document in documents.items():
        for line in document["log"]:
            print(f"{way}: {line}", file=sys.stderr)
    yield from (row(documents, way, number) for way in WAYS for number in LOADS)


def job(folder: str, way: str) -> launch.Job:
    """The engine of a way."""
    name, _, value = WAYS[way].partition("=")
    env = ENVIRONMENT | NOTHING | ({name: value} if name else {}) | {"MRV2LAB_AUDIT_DIR": folder}
    settings = {"folder": folder, "number": [*WAYS].index(way), "of": len(WAYS)}
    return launch.Job("bench_server", way, env, settings, timeout_s=570, memory_gib=64)


def row(documents: dict[str, Any], way: str, number: int) -> Row:
    """One way and load; times and answers are held, round by round, against those of the first way.

    Right is what gives the same tokens, and has done what was asked of it: a guard watches values, a key was
    audited and each thousandth replay checked.
    """
    labels: dict[str, str | int] = {"attached": way, "requests": number}
    first, *_ = WAYS
    if way not in documents or first not in documents:
        return Row(labels=labels, verdict="failed", ms={})
    ours, off = documents[way], documents[first]
    at = str(number)
    factors = [a / b for a, b in zip(ours["ms"][at], off["ms"][at], strict=True)]
    did = {"off": True, "guard": ours["counts"].get("values", 0) > 0}.get(way, ours["checks"].get(at, 0) > 0)
    is_right = did and ours["answers"][at] == off["answers"][at]
    counts = {"of off": median(factors), "least": min(factors), "most": max(factors)}
    counts |= ours["counts"] | ({"checks": ours["checks"][at]} if at in ours["checks"] else {})
    ms = {"token": latency(ours["ms"][at])}
    return Row(labels=labels, verdict="correct" if is_right else "wrong", ms=ms, counts=counts)
