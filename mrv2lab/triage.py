"""One set of requests that fails, hangs or is wrong: with which graphs, and with which of their sizes."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mrv2lab import hunt
from mrv2lab.errors import BadInput
from mrv2lab.hunt_grid import FEATURES, MODES
from mrv2lab.live import launch
from mrv2lab.live.audited import job_of_model
from mrv2lab.live.hunt_models import MODELS
from mrv2lab.live.hunted import ENGINE, FOUND, Outcome
from mrv2lab.results import Provenance

WAYS: dict[str, tuple[int, str, dict[str, str]]] = {
    "off": (0, "NONE", {}),
    "piecewise": (*MODES["piecewise"][:2], {}),
    "full": (0, "FULL", {}),
    "full, launches wait": (0, "FULL", {"CUDA_LAUNCH_BLOCKING": "1"}),
}
"""By name: compilation, `cudagraph_mode`, and what is added to the environment."""


@dataclass(frozen=True)
class Case:
    """What is looked into."""

    model: str  # of the hunt's list, or a folder
    engine: dict[str, Any]  # arguments of `vllm.LLM`
    env: dict[str, str]
    lengths: Sequence[int]  # tokens of each prompt; all are served at once
    sizes: Sequence[int]  # that are captured
    timeout_s: int


def case(model: str, engine: Sequence[str], lengths: Sequence[int], timeout_s: int) -> Case:
    """Read what a user has given. BadInput: no such model, an option without a value, no GPU or vLLM here."""
    if model not in MODELS and not Path(model).is_dir():
        raise BadInput(f"--model {model}: no such folder, and no model of mrv2lab hunt vllm --list")
    hunt.check("triage", "docs/hunt.md")
    job = job_of_model(model, (), engine)
    options = dict(job.settings["options"])
    asked = options.pop("compilation_config", {}).get("cudagraph_capture_sizes")
    sizes = tuple(asked or FEATURES["plain"].sizes)
    options = {"max_model_len": max(1024, max(lengths) + 32)} | options
    return Case(model, options, job.env, lengths, sizes, timeout_s)


def run(given: Case) -> Iterator[tuple[str, Sequence[int], Outcome]]:
    """Each way, then full graphs of half of the sizes, as long as a half is enough: way, sizes, outcome."""
    found = {}
    for way in WAYS:
        found[way] = _served(given, way)
        yield way, given.sizes, found[way]
    if found["full"].verdict in FOUND and found["off"].verdict not in FOUND:
        yield from _halved(given)


def _halved(given: Case) -> Iterator[tuple[str, Sequence[int], Outcome]]:
    half = len(given.sizes) // 2
    for sizes in filter(None, (given.sizes[:half], given.sizes[half:] if half else ())):
        part = replace(given, sizes=sizes)
        outcome = _served(part, "full")
        yield "full", sizes, outcome
        if outcome.verdict in FOUND:
            yield from _halved(part)
            return


def _served(given: Case, way: str) -> Outcome:
    compilation, graphs, env = WAYS[way]
    labels = {"model": given.model, "mode": way, "feature": ",".join(map(str, given.sizes))}
    known = MODELS.get(given.model)
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            "labels": labels, "compilation": compilation, "graphs": graphs, "sizes": list(given.sizes),
            "engine": given.engine, "adapters": 0, "timeout_s": given.timeout_s,
            "lengths": list(given.lengths), "batches": [len(given.lengths)], "file": f"{folder}/outcome",
        }  # fmt: skip
        asked |= {"folder": given.model} if known is None else {"config": known}
        settings = {"asked": [asked], "audits": False}
        job = launch.Job("triage", way, given.env | env, settings, timeout_s=given.timeout_s + 60)
        return hunt.outcome_of(launch.run(job, command=hunt.COMMAND))


def rows(found: Sequence[tuple[str, Sequence[int], Outcome]]) -> list[list[str]]:
    """A header, and each way in a row."""
    told = [
        [way, ",".join(map(str, sizes)), one.verdict, one.graphs, str(one).split("; ", 1)[1]]
        for way, sizes, one in found
    ]
    return [["graphs", "sizes", "verdict", "cudagraph_mode", "seen"], *told]


def unasked(found: Sequence[tuple[str, Sequence[int], Outcome]]) -> str:
    """Why nothing is known of full graphs, though nothing has failed; empty if something is."""
    full = next(one for way, _, one in found if way == "full")
    if full.verdict not in ("eager", "left out") or any(one.verdict in FOUND for *_, one in found):
        return ""
    return f"full graphs could not be asked: {full.message or 'hardly a step replayed one'}"


def report(given: Case, found: Sequence[tuple[str, Sequence[int], Outcome]], made: Provenance) -> str:
    """For an issue, in Markdown: settings, verdicts, and of the smallest set of sizes that fails the log."""
    bad = [(way, sizes, one) for way, sizes, one in found if one.verdict in FOUND]
    table = [f"| {' | '.join(cells).replace(chr(10), ' ')} |" for cells in rows(found)]
    smallest = min(bad, key=lambda each: len(each[1]), default=None)
    tail = "\n".join(smallest[2].log_tail or [smallest[2].message]) if smallest else unasked(found)
    settings = {"model": given.model, "engine": ENGINE | given.engine, "prompt_lengths": list(given.lengths)}
    others = sorted(name for name in os.environ if name.startswith("VLLM_") and name not in given.env)
    ways = {way: {"mode": mode, "cudagraph_mode": name} | env for way, (mode, name, env) in WAYS.items()}
    where = f"{smallest[0]}, sizes {','.join(map(str, smallest[1]))}" if smallest else "none"
    return "\n".join(
        [
            f"{made.machine}, driver {made.driver}", "", f"`{json.dumps(settings)}`", "",
            f"Environment: `{json.dumps(given.env)}`; also set: {', '.join(others) or 'none'}", "",
            f"Asked for: `{json.dumps(ways)}`", "",
            table[0], "|---|---|---|---|---|", *table[1:], "",
            f"Smallest that fails: {where}", "", "```", tail or "nothing failed", "```", "",
        ]
    )  # fmt: skip
