"""The process of a probe: `python -m mrv2lab.upstream.child VERSION CASE RESULTS [VARIANT ...]`.

Started by `process`, which sets the environment. Each variant, or without variants each row of the bug's
history, is a line of JSON in the file RESULTS.
"""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from mrv2lab.errors import BadInput
from mrv2lab.upstream import platform, probe, probes, process


def main(answer: Callable[..., Iterable[str]]) -> None:
    """Put the platform in place, check that this is the release asked for, and write what it answers."""
    version, asked, results, *more = sys.argv[1:]
    try:
        platform.apply()
        if (imported := import_module("vllm").__version__) != version:
            raise BadInput(f"asked for vllm {version}, but {imported} is first on the path")
        Path(results).write_text("".join(f"{line}\n" for line in answer(version, asked, *more)))
    except ModuleNotFoundError as error:
        if not probe.misses_library(error):
            raise
        print(f"needs the library {error.name}, which is not installed: make source", file=sys.stderr)
        sys.exit(process.LIBRARY_MISSING)


def _probed(version: str, case: str, *variants: str) -> Iterable[str]:
    wanted = probes.get(case)
    outcomes = [probe.run(wanted.variants[name]) for name in variants] or map(probe.tell, wanted.rows)
    return (outcome.model_dump_json() for outcome in outcomes)


if __name__ == "__main__":
    main(_probed)
