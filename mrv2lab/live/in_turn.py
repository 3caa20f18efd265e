"""The process of one of several engines that serve in turn: `python -m mrv2lab.live.in_turn SPEC.json`.

Of `bench_server`. An engine serves once the one before it has, as files in a folder tell: so all see the same
GPU, as warm and as busy. A turn of a load is a thousand steps that decode, hence one check of `every=1000`.
"""

import hashlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import mrv2lab_vllm
from mrv2lab.live.engine import make_engine
from mrv2lab.live.guarded import ServerGuard
from mrv2lab.live.loads import PROMPT_TOKENS, generate
from mrv2lab.live.models import use_spread_weights
from mrv2lab.live.plugin import Served
from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result
from mrv2lab.timed import RUNS

LOADS = (1, 8, 32)  # requests at once
CALLS, NUM_TOKENS = 4, 251  # of a turn
POLL_S = 0.02
FAILED = "failed"


def turns(number: int, of: int) -> Iterator[tuple[int, int, int]]:
    """Those of an engine: which turn of all it is, round, and requests. Round 0 does not count."""
    for turn, (run, load, whose) in enumerate(product(range(RUNS + 1), LOADS, range(of))):
        if whose == number:
            yield turn, run, load


def measured(settings: dict[str, Any]) -> dict[str, Any]:
    """Serve all turns of an engine.

    Returns:
        By load milliseconds a token in each round, digests of the answers, and checks; what was counted in
        all, and what was logged.

    Raises:
        RuntimeError: another engine has failed.
    """
    folder, number, log = Path(settings["folder"]), settings["number"], list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("vllm.mrv2lab").addHandler(handler)
    if number:  # what torch compiles the first one compiles for all
        wait_for(folder / "stands-0")
    llm = start(str(folder / "0.6B"))
    (folder / f"stands-{number}").touch()
    for other in range(settings["of"]):
        wait_for(folder / f"stands-{other}")
    found: dict[str, Any] = {name: {str(load): [] for load in LOADS} for name in ("ms", "answers")}
    served, checks = audit_of(llm), dict.fromkeys(map(str, LOADS) if audit_of(llm) else (), 0)
    for turn, run, load in turns(number, settings["of"]):
        if turn:
            wait_for(folder / f"turn-{turn - 1}")
        before = served.num["checks"] if served else 0
        ms, answers = turn_of(llm, load)
        (folder / f"turn-{turn}").touch()
        found["answers"][str(load)] += answers
        if run:
            found["ms"][str(load)].append(ms)
        if served:
            checks[str(load)] += served.num["checks"] - before
    wait_for(folder / f"turn-{(RUNS + 1) * len(LOADS) * settings['of'] - 1}")  # none ends while one serves
    counts = {"start-up s": llm.start_up_s} | counts_of(llm)
    return found | {"checks": checks, "counts": counts, "log": log}


def start(model: str) -> Any:
    """vLLM's `LLM` as it is installed, but for sizes of graphs; with what the environment asks for."""
    mrv2lab_vllm.attach()  # also where it is not installed as a plugin
    use_spread_weights()
    llm = make_engine(
        model, "FULL_AND_PIECEWISE", LOADS, compilation_mode=3, load_format="dummy",
        max_num_seqs=max(LOADS), max_num_batched_tokens=PROMPT_TOKENS * max(LOADS),
        gpu_memory_utilization=0.25, kv_cache_memory_bytes=3 << 29, disable_log_stats=False,
    )  # fmt: skip
    llm.llm_engine.logger_manager = None
    return llm


def turn_of(llm: Any, load: int) -> tuple[float, list[str]]:
    """Milliseconds a token, the mean of all calls of the median request's; and a digest of each answer."""
    taken, digests = list[float](), list[str]()
    for _ in range(CALLS):
        outputs = generate(llm, load, NUM_TOKENS)
        stats = [output.metrics for output in outputs]
        taken.append(median((s.last_token_ts - s.first_token_ts) / (NUM_TOKENS - 1) for s in stats))
        tokens = json.dumps([list(output.outputs[0].token_ids) for output in outputs])
        digests.append(hashlib.sha256(tokens.encode()).hexdigest()[:12])
    return 1e3 * mean(taken), digests


def audit_of(llm: Any) -> Served | None:
    return getattr(worker_of(llm), "mrv2lab_audit", None)


def worker_of(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.worker


def counts_of(llm: Any) -> dict[str, float]:
    """Of a guard how many values it watches and how many have changed, of audits what they have found."""
    guard: ServerGuard | None = getattr(worker_of(llm), "mrv2lab_guard", None)
    served, counts = audit_of(llm), dict[str, float]()
    if guard is not None:
        counts = {"values": guard.checks, "graphs": len(guard._graphs), "told": len(guard.told)}
    if served is not None:
        counts |= {"audited": len(served.found), "findings": sum(map(sum, served.found.values()))}
    return counts


def wait_for(file: Path) -> None:
    """Return once it is there. RuntimeError: another engine has failed."""
    while not file.exists():
        if (file.parent / FAILED).exists():
            raise RuntimeError("another engine has failed")
        time.sleep(POLL_S)


def main(spec: str) -> None:
    """Run the job in a file and report what it gave."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    try:
        tell_result(measured(job.settings), stdout)
    except BaseException:
        (Path(job.settings["folder"]) / FAILED).touch()
        raise


if __name__ == "__main__":
    main(sys.argv[1])
