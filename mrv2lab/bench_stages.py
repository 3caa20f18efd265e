"""vLLM's engine with two pipeline stages, timed: without graphs, with them, and with other settings.

An engine has both GPUs for itself (`live.stages`). The first one, without graphs, is what the others' answers
are held against.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mrv2lab.bench_engine import BESIDES, MODES, told
from mrv2lab.errors import BadInput, choose
from mrv2lab.live import launch
from mrv2lab.live.models import make_qwen3_config
from mrv2lab.live.releases import ENGINES, installed
from mrv2lab.live.rung import ENVIRONMENT, missing_gpus
from mrv2lab.live.stages import AT_ONCE
from mrv2lab.timed import Row

__all__ = ["BESIDES", "WAYS", "rows"]

COMMAND = (sys.executable, "-m", "mrv2lab.live.stages")


class Way(NamedTuple):
    """A mode of `bench_engine`, and what else is asked of vLLM."""

    mode: str
    options: Mapping[str, Any] = MappingProxyType({})


WAYS = {
    "eager": Way("eager"),
    "piecewise": Way("piecewise"),
    "full_and_piecewise": Way("full_and_piecewise"),
    "small_steps": Way("full_and_piecewise", {"max_num_batched_tokens": 1024}),
    "no_async": Way("full_and_piecewise", {"async_scheduling": False}),
}
"""`small_steps`: the first prompts come in several steps, so that there are two batches of like size."""


def rows(ways: Sequence[str]) -> Iterator[Row]:
    """Time one engine after the other. BadInput: no such way, or what this machine lacks."""
    for way in ways:
        choose("way", way, list(WAYS))
    lacks = [] if installed() in ENGINES else [f"vllm {' or '.join(ENGINES)}"]
    if lacks := lacks + missing_gpus(2):
        raise BadInput(f"bench stages needs {' and '.join(lacks)}")
    return _rows(ways)


def _rows(ways: Sequence[str]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="mrv2lab-bench-") as folder:
        model = make_qwen3_config(Path(folder, "1.7B"))
        for way in dict.fromkeys(["eager", *ways]):
            ended = launch.run(job(str(model), way), command=COMMAND)
            yield from told(ended)
            if way == "eager" and ended.crash is not None:  # then there is nothing to hold others against
                return


def job(folder: str, way: str) -> launch.Job:
    """An engine, and what it is asked."""
    mode, options = WAYS[way]
    compilation, graphs, _ = MODES[mode]
    settings = {
        "labels": {"way": way, "requests": AT_ONCE},
        "loads": [AT_ONCE],
        "folder": folder,
        "is_reference": way == "eager",
        "has_graphs": graphs != "NONE",
        "compilation_config": {"mode": compilation, "cudagraph_mode": graphs},
        "options": {**options, "enforce_eager": mode == "eager"},
    }
    return launch.Job("bench_stages", way, ENVIRONMENT, settings, memory_gib=96)
