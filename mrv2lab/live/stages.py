"""The process of an engine with two pipeline stages that is timed: `python -m mrv2lab.live.stages SPEC.json`.

A steady load, as in `live.pp`. With forced tokens it is judged first; what is right is timed, and then
served once more under a profiler in each stage, to see what that stage does with its time.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from mrv2lab.live.engine import generate, make_engine
from mrv2lab.live.loads import TOLERANCE, answers, worst
from mrv2lab.live.pp import prompt, sampling
from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result
from mrv2lab.timed import RUNS, Row, latency
from mrv2lab.verdict import judge

EXTENSION = "mrv2lab.live.stage_worker.StageWorker"  # a name: importing it would import vLLM
AT_ONCE, NUM_REQUESTS, NUM_PROFILED = 64, 160, 96
PROMPT_LENGTHS = (8,) * AT_ONCE  # of what is judged: all go in one step, however few tokens it may take
Span = tuple[int, int]  # ns: begin and end


def measured(settings: dict[str, Any]) -> Row:
    """Start an engine, judge and time it; `bench_stages.job` says of what `settings` are."""
    llm = make_engine(
        settings["folder"], "", (), load_format="dummy", pipeline_parallel_size=2,
        compilation_config=settings["compilation_config"],
        distributed_executor_backend="mp", worker_extension_cls=EXTENSION,
        gpu_memory_utilization=0.5, kv_cache_memory_bytes=8 << 30, max_num_seqs=AT_ONCE,
        **settings["options"],
    )  # fmt: skip
    logits, replays = forced(llm)
    kept = answers(settings, AT_ONCE)
    if settings["is_reference"]:
        np.save(kept, torch.stack(logits).numpy())
    error = worst(logits, list(torch.from_numpy(np.load(kept))))
    idle = [float(not replays)] if settings["has_graphs"] else []
    verdict = judge([error], idle, tolerance=TOLERANCE)
    if verdict == "wrong":
        return Row(labels=settings["labels"], verdict=verdict, ms={}, counts={"error": error})
    runs = [steady(llm, NUM_REQUESTS) for _ in range(RUNS + 1)][1:]
    ms = {name: latency([run[name] for run in runs]) for name in ("load", "first token", "token")}
    counts = {"error": error, "graphs a step": replays, "requests a step": mean(r["requests"] for r in runs)}
    counts["requests a second"] = 1e3 * NUM_REQUESTS / ms["load"].median
    return Row(labels=settings["labels"], verdict=verdict, ms=ms, counts=counts | profiled(llm))


def profiled(llm: Any) -> dict[str, float]:
    """What each stage does with its time, in percent. Nothing, and a line of the log, where there is no
    profile: what was timed is not to be lost for that."""
    try:
        llm.collective_rpc("begin_profile")
        steady(llm, NUM_PROFILED)
        stages = llm.collective_rpc("end_profile")
    except Exception as error:
        print(f"no profile: {error}", file=sys.stderr)
        return {}
    of_all = [(n, what, share) for n, one in enumerate(stages) for what, share in one.items()]
    return {f"stage {n} {what} %": 100 * share for n, what, share in of_all}


def forced(llm: Any) -> tuple[list[torch.Tensor], float]:
    """The last stage's logits of each step [requests, columns], and its graphs replayed in one."""
    llm.collective_rpc("start_watching", args=(AT_ONCE, False, False, *llm.asked))
    generate(llm, PROMPT_LENGTHS)
    logits, replays, *_ = llm.collective_rpc("stop_watching")[-1]
    return [torch.from_numpy(step) for step in logits], median(replays[1:])


def steady(llm: Any, number: int) -> dict[str, float]:
    """A load in which the next request comes when one ends. Milliseconds, medians over requests; the first
    token of those that find the engine busy. `requests`: how many get a token in one step that gives any."""
    engine, waiting = llm.llm_engine, deque(range(number))
    asked: dict[str, float] = {}
    tokens: dict[str, list[tuple[float, int]]] = {}  # when, and how many there were then
    in_step: list[int] = []

    def ask() -> None:
        i = waiting.popleft()
        asked[str(i)], tokens[str(i)] = time.perf_counter(), []
        engine.add_request(str(i), {"prompt_token_ids": prompt(i)}, sampling(i))

    for _ in range(min(AT_ONCE, number)):
        ask()
    while engine.has_unfinished_requests():
        outputs = engine.step()
        in_step += [len(outputs)] if outputs else []
        for output in outputs:
            name = output.request_id.split("-")[0]  # vLLM may make an id unique by adding to it
            tokens[name].append((time.perf_counter(), len(output.outputs[0].token_ids)))
            if output.finished and waiting:
                ask()
    per_token = [(seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1]) for seen in tokens.values()]
    return {
        "load": 1e3 * (max(seen[-1][0] for seen in tokens.values()) - min(asked.values())),
        "first token": 1e3 * median(tokens[n][0][0] - asked[n] for n in asked if int(n) >= AT_ONCE),
        "token": 1e3 * median(per_token),
        "requests": mean(in_step),
    }


def shares(kernels: list[Span], passing: list[Span]) -> dict[str, float]:
    """What a stage does between the first and the last of its work: it computes or copies; nothing but NCCL
    runs, which hands over and waits for the other stage; or nothing is launched."""
    both = merged([*kernels, *passing])
    if not both:
        return {}
    whole, busy = both[-1][1] - both[0][0], _length(merged(kernels))
    either = _length(both)
    return {"computes": busy / whole, "hands over": (either - busy) / whole, "idle": 1 - either / whole}


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same time in spans that do not overlap, in order."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _length(spans: Iterable[Span]) -> int:
    return sum(end - begin for begin, end in spans)


def main(spec: str) -> None:
    """Run the job in a file and report its row."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    tell_result({"rows": [measured(job.settings).model_dump(mode="json")]}, stdout)


if __name__ == "__main__":
    main(sys.argv[1])
