"""Runs a probe in a process of its own, with one release of vLLM first on its path."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from mrv2lab import forks
from mrv2lab.errors import BadInput, choose
from mrv2lab.limits import cut_off
from mrv2lab.upstream import probes, releases
from mrv2lab.upstream.environment import ENVIRONMENT
from mrv2lab.upstream.outcome import Cell, Outcome

TIMEOUT_S = 900  # generous: a busy machine is none of a release's faults
_HERE = Path(__file__).resolve().parents[2]  # where mrv2lab itself is imported from
LIBRARY_MISSING = 3  # exit status of a probe's process


class ProbeFailed(BadInput):
    """A probe ended without a result: it misses a library, or does not fit the release."""


class LibraryMissing(ProbeFailed):
    """A probe imports a library that is not installed: the extra `source` has them."""


def run_variants(case: str, variants: Sequence[str], version: str | None = None) -> list[Outcome]:
    """Run variants of a case on vLLM's own classes, those of one release one after the other in one process.

    Each runs on its own release, or all on `version`. ReleaseUnavailable: it is neither in the cache nor in
    reach. ProbeFailed: no result, and why; `LibraryMissing` if that is the reason.
    """
    known = probes.get(case).variants
    outcomes: dict[str, Outcome] = {}
    for release in [version] if version else releases_of(case, variants):
        names = [name for name in variants if version or known[name].release == release]
        told = lines("child", release, case, *names, what=case)
        outcomes |= zip(names, map(Outcome.model_validate, told), strict=True)
    return [outcomes[name] for name in variants]


def releases_of(case: str, variants: Sequence[str]) -> list[str]:
    """The releases that these variants run on, oldest first. BadInput where the probe has no such variant."""
    known = probes.get(case).variants
    asked = [choose(f"variant of {case} on rung source", name, list(known)) for name in variants]
    return sorted({known[name].release for name in asked}, key=releases.sort_key)


def tell_rows(case: str, version: str) -> list[Cell]:
    """What a release shows of a bug as it is. Raises as `run_variants`."""
    return [Cell.model_validate(line) for line in lines("child", version, case, what=case)]


def environment(version: str) -> dict[str, str]:
    """Of a process that imports this release before any other, fetched if need be, and this package."""
    path = [str(releases.fetch(version).path), str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    # No bytecode is kept with a release, and none from elsewhere run, which nothing could be checked against:
    # to compile what a probe imports takes half a second.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": ""}
    return os.environ | ENVIRONMENT | bytecode | {"PYTHONPATH": os.pathsep.join(path)}


def missing_libraries() -> list[str]:
    """What vLLM's Python imports, as the extra `source` names it, and this machine has not got."""
    try:
        needs = [Requirement(line) for line in metadata.requires("mrv2lab") or ()]
    except metadata.PackageNotFoundError:  # a folder on Python's path
        return []
    named = [r.name for r in needs if r.marker and "source" in str(r.marker)]
    return [name for name in named if not [*metadata.distributions(name=name)]]


def lines(module: str, version: str, asked: str, *more: str, what: str) -> list[dict[str, Any]]:
    """Start a module of `mrv2lab.upstream`, which writes a line of JSON for each result. Raises as above."""
    # -P: neither the folder we are in nor one named vllm in it is to be imported from.
    command = [sys.executable, "-P", "-m", f"mrv2lab.upstream.{module}"]
    env = environment(version)  # may take minutes: before there is a folder that somebody has to remove
    with tempfile.TemporaryDirectory(prefix="mrv2lab-") as name:
        results = Path(name, "results")
        words = [*command, version, asked, str(results), *more]
        try:
            status, said = forks.command(words, Path(name), env, TIMEOUT_S)
        except TimeoutError as error:
            raise ProbeFailed(f"{what} on vllm {version}: {cut_off('the probe', TIMEOUT_S)}") from error
        if status != 0 or not results.exists():
            if status is not None and status < 0:
                said = f"the probe's process was ended by {signal.Signals(-status).name}"
            failure = LibraryMissing if status == LIBRARY_MISSING else ProbeFailed
            raise failure(f"{what} on vllm {version}: {said}")
        return [json.loads(line) for line in results.read_text().splitlines()]
