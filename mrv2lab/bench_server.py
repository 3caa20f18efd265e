"""vLLM's engine while it serves: with nothing attached, with a guard, and with audits that go on, in turn.

It is one engine with all of that attached, and two without, each in a process of its own (`live.in_turn`).
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from mrv2lab.audit.lines import MONITORS
from mrv2lab.bench_engine import BESIDES, MODELS
from mrv2lab.errors import BadInput
from mrv2lab.live import launch
from mrv2lab.live.in_turn import EVERY, LOADS, WAYS
from mrv2lab.live.models import make_qwen3_config
from mrv2lab.live.releases import ENGINES, installed
from mrv2lab.live.rung import ENVIRONMENT, missing_gpus
from mrv2lab.timed import Row

__all__ = ["BESIDES", "rows"]

ATTACHED = {"MRV2LAB_GUARD": "warn", "MRV2LAB_AUDIT": f"every={EVERY}", "VLLM_LOGGING_LEVEL": "INFO"}
COMMAND = (sys.executable, "-m", "mrv2lab.live.in_turn")


def rows() -> Iterator[Row]:
    """Time all ways and loads. BadInput: what this machine lacks."""
    lacks = [] if installed() in ENGINES else [f"vllm {' or '.join(ENGINES)}"]
    lacks += missing_gpus(1)
    lacks += [] if MONITORS else ["Python 3.12"]  # before it, of two tracers of lines only one is called
    if lacks:
        raise BadInput(f"bench server needs {' and '.join(lacks)}")
    return _rows()


def _rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="mrv2lab-bench-") as folder:
        file = make_qwen3_config(Path(folder, "0.6B")) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | MODELS["0.6B"]))
        env = ENVIRONMENT | ATTACHED | {"MRV2LAB_AUDIT_DIR": folder}
        settings = {"folder": str(file.parent)}
        job = launch.Job("bench_server", "0.6B", env, settings, timeout_s=570, memory_gib=64)
        ended = launch.run(job, command=COMMAND)
    if ended.document is not None:
        for line in ended.document["log"]:
            print(line, file=sys.stderr)
        yield from map(Row.model_validate, ended.document["rows"])
        return
    if ended.crash is not None:
        warnings.warn(f"{ended.crash.reason}: {ended.crash.message}", stacklevel=2)
    for way in WAYS:
        yield from (
            Row(labels={"attached": way, "requests": load}, verdict="failed", ms={}) for load in LOADS
        )
