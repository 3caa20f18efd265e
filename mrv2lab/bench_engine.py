"""vLLM's own engine, timed: without graphs and with each kind of them, under both of its model runners.

An engine has a process, and the GPU, for itself (`live.loads`), and all loads are served by it. The first
one of each model is Model Runner V2 without graphs and without torch.compile: the others are held against
its answers.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple, cast

from mrv2lab.errors import BadInput, choose
from mrv2lab.live import launch
from mrv2lab.live.loads import LOADS, RUNNERS
from mrv2lab.live.models import make_qwen3_config
from mrv2lab.live.releases import ENGINES, installed
from mrv2lab.live.rung import ENVIRONMENT, missing_gpus
from mrv2lab.timed import Row

MODELS: dict[str, dict[str, int | bool]] = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "tie_word_embeddings": True},
    "1.7B": {"tie_word_embeddings": True},
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
}
"""Qwen3 of these sizes: in what their shape is another one than `make_qwen3_config`'s."""


class Mode(NamedTuple):
    """How a model is run."""

    compilation: int  # 0 none, 3 torch.compile as vLLM has it
    graphs: str  # `cudagraph_mode`
    breaks: bool = False  # where attention is, at a decorator, without torch.compile


MODES = {
    "eager": Mode(0, "NONE"),
    "compiled": Mode(3, "NONE"),
    "piecewise": Mode(3, "PIECEWISE"),
    "breakable": Mode(0, "PIECEWISE", breaks=True),
    "full_and_piecewise": Mode(3, "FULL_AND_PIECEWISE"),
    "full_decode_only": Mode(3, "FULL_DECODE_ONLY"),
}

ASKED = [mode for mode in MODES if mode != "compiled"]
"""What is timed if nobody says what."""

REFERENCE = ("V2", "eager")
COMMAND = (sys.executable, "-m", "mrv2lab.live.loads")
BESIDES = ("upstream", "live.pp", "live.releases", "live.variants")
"""What `live.rung` imports for cases."""


def rows(models: Sequence[str], runners: Sequence[str], modes: Sequence[str]) -> Iterator[Row]:
    """Time engines, those of one model after those of another, and of each all loads.

    Where an engine fails, a warning says how, and its rows have no times.

    Raises:
        BadInput: there is none of that name, or what this machine lacks.
    """
    for kind, names, known in ("model", models, MODELS), ("runner", runners, RUNNERS), ("mode", modes, MODES):
        for name in names:
            choose(kind, name, list(known))
    release = [] if installed() in ENGINES else [f"vllm {' or '.join(ENGINES)}"]
    if lacks := release + missing_gpus(1):
        raise BadInput(f"bench engine needs {' and '.join(lacks)}")
    return _rows(models, list(product(runners, modes)))


def _rows(models: Sequence[str], asked: list[tuple[str, str]]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="mrv2lab-bench-") as folder:
        for model in models:  # one place for all engines: it is part of the key of what torch.compile keeps
            file = make_qwen3_config(Path(folder, model)) / "config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | MODELS[model]))
        for model in models:
            yield from _of_model(folder, model, asked)


def _of_model(folder: str, model: str, asked: list[tuple[str, str]]) -> Iterator[Row]:
    reference, *others = [
        job(folder, model, *way, LOADS if way in asked else ()) for way in dict.fromkeys([REFERENCE, *asked])
    ]
    # By itself: of two that wait for the GPU, either may be the first.
    ended = launch.run(reference, command=COMMAND)
    yield from told(ended)
    if ended.crash is not None:  # then there is nothing to hold the others against
        for other in others:
            yield from told(replace(ended, job=other))
        return
    all_ended = launch.run_all(others, at_once=1, ahead=1, command=COMMAND)
    # So that engines end before their folder goes.
    with closing(cast("Generator[launch.Ended, None, None]", all_ended)):
        for ended in all_ended:
            yield from told(ended)


def job(folder: str, model: str, runner: str, mode: str, loads: Sequence[int]) -> launch.Job:
    """An engine, and what it is to serve; the reference answers every load, also if none is to be timed."""
    compilation, graphs, breaks = MODES[mode]
    settings = {
        "labels": {"model": model, "runner": runner, "mode": mode},
        "loads": list(loads),
        "folder": str(Path(folder, model)),
        "is_reference": (runner, mode) == REFERENCE,
        "has_graphs": graphs != "NONE",
        "enforce_eager": mode == "eager",
        "compilation_config": {"mode": compilation, "cudagraph_mode": graphs},
    }
    env = ENVIRONMENT | {
        "VLLM_USE_V2_MODEL_RUNNER": str(int(runner == "V2")),
        "VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(breaks)),
    }
    return launch.Job("bench_engine", f"{model} {runner} {mode}", env, settings, memory_gib=64)


def told(ended: launch.Ended) -> list[Row]:
    """The rows of an engine that has ended."""
    if ended.document is not None:
        return [Row.model_validate(row) for row in ended.document["rows"]]
    if ended.crash is not None:
        warnings.warn(f"{ended.job.variant}: {ended.crash.reason}: {ended.crash.message}", stacklevel=2)
    settings = ended.job.settings
    return [
        Row(labels=settings["labels"] | {"requests": number}, verdict="failed", ms={})
        for number in settings["loads"]
    ]
