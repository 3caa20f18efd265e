"""The process of one engine that is timed: `python -m mrv2lab.live.loads SPEC.json`, of `bench_engine`.

Each load is served twice over. With forced tokens (`live.engine`) it is judged: its logits are held against
those that the eager engine of the same model has kept. So no near-tie decides a token, and all engines see
the same contexts. What is right is then timed, with tokens of its own.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from math import inf
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from mrv2lab.live.engine import VOCAB_SIZE, Graphs, Served, Watcher, make_engine, runner_of
from mrv2lab.live.models import use_spread_weights
from mrv2lab.live.protocol import (
    await_turn,
    claim_stdout,
    die_with_parent,
    read_job,
    tell_progress,
    tell_result,
)
from mrv2lab.results import Latency
from mrv2lab.timed import RUNS, Row, latency
from mrv2lab.verdict import judge

LOADS = (1, 8, 32, 128)  # requests at once
PROMPT_TOKENS, NUM_TOKENS, NUM_FORCED = 128, 64, 24
EVERY = 64  # of logits, one column of so many is kept
STEPS = 8  # that are profiled

RUNNERS = {"V1": "vllm.v1.worker.gpu_model_runner", "V2": "vllm.v1.worker.gpu.model_runner"}
"""Where the `GPUModelRunner` is."""

TOLERANCE = 6e-2
"""Largest relative error of one request's logits in one step that still counts as right: twice what engines
that round at other places differ by (`data/timed-engine-vllm.json`). One token less of context may pass."""


@dataclass
class Watched:
    """What an engine does with graphs: how often they are replayed, and what it took to capture them."""

    graphs: Graphs = field(default_factory=Graphs)
    capture_ms: float = 0.0
    mib: float = 0.0  # of the device, as vLLM logs it

    def watch(self, runner_class: Any) -> None:
        """From now on. A replay is counted, which is one addition, and for good: vLLM may keep the method."""
        capture_model, replay = runner_class.capture_model, torch.cuda.CUDAGraph.replay

        def captured(runner: Any) -> int:
            begin = time.perf_counter()
            num_bytes: int = capture_model(runner)
            self.capture_ms, self.mib = 1e3 * (time.perf_counter() - begin), num_bytes / 2**20
            return num_bytes

        def replayed(graph: torch.cuda.CUDAGraph) -> None:
            self.graphs.num_replays += 1
            replay(graph)

        runner_class.capture_model = captured
        torch.cuda.CUDAGraph.replay = replayed  # type: ignore[method-assign, assignment]


def measured(settings: dict[str, Any]) -> list[Row]:
    """Start an engine, judge and time each load; `bench_engine.job` says of what `settings` are.

    Raises:
        FileNotFoundError: the reference has kept no answers.
        RuntimeError: vLLM has taken another runner.
    """
    watched, module = Watched(), RUNNERS[settings["labels"]["runner"]]
    watched.watch(import_module(module).GPUModelRunner)
    await_turn()  # by then the reference has ended; without its answers no GPU time is spent
    if not settings["is_reference"]:
        np.load(answers(settings, max(LOADS)), mmap_mode="r")
    llm = start(settings)
    if (found := type(runner_of(llm)).__module__) != module:
        raise RuntimeError(f"the runner is one of {found}, and was to be of {module}")
    if settings["is_reference"]:
        for number in LOADS:
            logits = torch.stack(forced(llm, watched.graphs, number).logits)  # [steps, requests, columns]
            np.save(answers(settings, number), logits.numpy())
    rows = [row(llm, watched, settings, number) for number in settings["loads"]]
    for made in rows:  # last of all, for a process that has been profiled may be slower
        if "token" in made.ms and (taken := kernels_ms(llm, int(made.labels["requests"]))):
            made.ms["kernels"] = latency([taken])
    return rows


def answers(settings: dict[str, Any], number: int) -> Path:
    """Where the reference keeps its logits of a load: beside the model."""
    return Path(settings["folder"], f"logits-{number}.npy")


def start(settings: dict[str, Any]) -> Any:
    """vLLM's `LLM` on a config, with weights at which attention shows in the logits."""
    use_spread_weights()
    llm = make_engine(
        settings["folder"], "", (), load_format="dummy", enforce_eager=settings["enforce_eager"],
        compilation_config=settings["compilation_config"],  # without sizes: those that vLLM chooses
        max_num_seqs=max(LOADS), max_num_batched_tokens=PROMPT_TOKENS * max(LOADS),  # all prompts in one step
        gpu_memory_utilization=0.5, kv_cache_memory_bytes=8 << 30, disable_log_stats=False,
    )  # fmt: skip
    llm.llm_engine.logger_manager = None  # requests keep their times; nothing is counted up in each step
    return llm


def row(llm: Any, watched: Watched, settings: dict[str, Any], number: int) -> Row:
    """Judge a load, and time it if it is right."""
    served = forced(llm, watched.graphs, number)
    error = worst(served.logits, list(torch.from_numpy(np.load(answers(settings, number)))))
    replays = median(served.replays[1:])  # the first step has the prompts
    idle = [float(replays == 0)] if settings["has_graphs"] else []
    verdict = judge([error], idle, tolerance=TOLERANCE)
    ms, counts = timed(llm, number) if verdict != "wrong" else ({}, {})
    once = {"start-up": 1e3 * llm.start_up_s, "capture": watched.capture_ms}
    ms |= {name: latency([taken]) for name, taken in once.items() if taken}
    counts |= {"graph MiB": watched.mib, "graphs a step": replays, "error": error}
    counts["compile s"] = llm.llm_engine.vllm_config.compilation_config.compilation_time
    return Row(labels=settings["labels"] | {"requests": number}, verdict=verdict, ms=ms, counts=counts)


@cache
def prompts(number: int) -> list[dict[str, list[int]]]:
    """One of its own for each request."""
    drawn = [Random(i).choices(range(VOCAB_SIZE), k=PROMPT_TOKENS) for i in range(number)]
    return [{"prompt_token_ids": token_ids} for token_ids in drawn]


def generate(llm: Any, number: int, num_tokens: int) -> list[Any]:
    """Serve so many requests at once."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=num_tokens, temperature=0, ignore_eos=True, detokenize=False)
    outputs: list[Any] = llm.generate(prompts(number), params, use_tqdm=False)
    return outputs


def forced(llm: Any, graphs: Graphs, number: int) -> Served:
    """Of each step the logits [requests, columns], and how many graphs were replayed for it."""
    watcher = Watcher(runner_of(llm), graphs, number, every=EVERY)
    watcher.start(eager=False)
    generate(llm, number, NUM_FORCED)
    return watcher.stop()


def worst(steps: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest relative error of a request in a step: one wrong among many is not to be lost in a norm.

    Raises:
        ValueError, RuntimeError: other steps, or of other requests.
    """
    pairs = zip(steps, wanted, strict=True)
    errors = torch.cat([(ours - right).norm(dim=-1) / right.norm(dim=-1) for ours, right in pairs])
    return float(torch.nan_to_num(errors, nan=inf).max())


def timed(llm: Any, number: int) -> tuple[dict[str, Latency], dict[str, float]]:
    """Serve a load `RUNS` times, after a first time that does not count.

    Returns:
        Times, in each run the median request's: `token`, each after its first one, by the engine core's
        clock; `first token`, from when it was added. `load`: until all are done; and what follows from that.
    """
    times: dict[str, list[float]] = {"token": [], "first token": [], "load": []}
    for _ in range(RUNS + 1):
        begin = time.perf_counter()
        stats = [output.metrics for output in generate(llm, number, NUM_TOKENS)]
        times["load"].append(time.perf_counter() - begin)
        times["token"].append(median((s.last_token_ts - s.first_token_ts) / (NUM_TOKENS - 1) for s in stats))
        times["first token"].append(median(s.first_token_latency for s in stats))
    ms = {name: latency([1e3 * s for s in taken[1:]]) for name, taken in times.items()}
    a_second = 1e3 * number / ms["load"].median
    return ms, {"requests a second": a_second, "tokens a second": NUM_TOKENS * a_second}


def kernels_ms(llm: Any, number: int) -> float | None:
    """How long the device works on a step that decodes: what `STEPS` more of them add to a profile.

    None, and a line of the log, where there is no profile: what was timed is not to be lost for that.
    """
    try:
        few, many = (_device_ns(llm, number, 2 + steps) for steps in (0, STEPS))
    except Exception as error:
        print(f"no profile of {number} requests: {error}", file=sys.stderr)
        return None
    return 1e-6 * (many - few) / STEPS if many > few else None


def _device_ns(llm: Any, number: int, num_tokens: int) -> int:
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        generate(llm, number, num_tokens)
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    on_device = [e for e in events if e.device_type().name == "CUDA" and not e.is_user_annotation()]
    return sum(event.duration_ns() for event in on_device)


def main(spec: str) -> None:
    """Run the job in a file and report its rows."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    tell_result({"rows": [made.model_dump(mode="json") for made in measured(job.settings)]}, stdout)


if __name__ == "__main__":
    main(sys.argv[1])
