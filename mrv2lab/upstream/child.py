"""The process of a probe: `python -m mrv2lab.upstream.child VERSION CASE RESULTS [VARIANT ...]`.

Writes one line of JSON for each variant to the file RESULTS; without variants, one for each row of the
bug's history. Started by `process`, which sets the environment.
"""

import sys
from importlib import import_module
from pathlib import Path

from mrv2lab.errors import BadInput
from mrv2lab.upstream import platform, probe, probes, process


def main(version: str, case: str, results: str, *variants: str) -> None:
    """Put the platform in place, check that this is the release asked for, and run."""
    platform.apply()
    imported = import_module("vllm").__version__
    if imported != version:
        raise BadInput(f"asked for vllm {version}, but {imported} is first on the path")
    wanted = probes.get(case)
    lines = [probe.run(wanted.variants[name]) for name in variants] or map(probe.tell, wanted.rows)
    with Path(results).open("w") as file:
        for line in lines:
            file.write(line.model_dump_json() + "\n")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ModuleNotFoundError as error:
        if not probe.misses_library(error):
            raise
        hint = "which is not installed: make source"
        print(f"needs the library {error.name}, {hint}", file=sys.stderr)
        sys.exit(process.LIBRARY_MISSING)
