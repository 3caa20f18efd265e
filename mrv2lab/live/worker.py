"""The process of one live run: `python -m mrv2lab.live.worker SPEC.json`, started by `launch`."""

import sys
import tempfile
from pathlib import Path

from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result
from mrv2lab.live.releases import installed, variants
from mrv2lab.live.run import run
from mrv2lab.live.variants import V1, V1_RUNNER


def main(spec: str) -> None:
    """Run the job in a file and report its outcome."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    with tempfile.TemporaryDirectory() as folder:
        release = installed()
        variant = V1_RUNNER[job.case] if job.variant == V1 else variants(job.case, release)[job.variant]
        outcome = run(variant, Path(folder), release=release)
    metrics = outcome.metrics | job.settings  # a speed is read beside the number of engines on the GPU
    tell_result(outcome.model_copy(update={"metrics": metrics}).model_dump(mode="json"), stdout)


if __name__ == "__main__":
    main(sys.argv[1])
