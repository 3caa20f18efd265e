"""Pipeline parallelism in the engine: two GPUs, vLLM's own worker processes, fixes taken out in each."""

import os
import time
from collections import deque
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mrv2lab.graphs.work import Amount
from mrv2lab.live.engine import Graphs, Served, generate, make_engine
from mrv2lab.live.models import make_qwen3_config
from mrv2lab.live.protocol import tell_progress
from mrv2lab.live.run import TOLERANCE, Seen, Variant, relative_errors
from mrv2lab.live.work import CountedStep

EXTENSION = "mrv2lab.live.extension.Extension"  # a name: importing it would import vLLM
EDITS = "MRV2LAB_LIVE_EDITS"
"""Environment variable: `CASE VARIANT` of the probe whose edits the workers make."""

EXECUTOR = "MRV2LAB_LIVE_EXECUTOR"
"""Environment variable: vLLM's executor, `mp` on one host or `ray`, which also takes several."""

PROMPT_LENGTHS = (5, 9, 17, 33)
CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
CONCURRENCY, NUM_REQUESTS, PROMPT_TOKENS = 64, 320, 64
"""The load: always so many requests at once, until so many are done."""


def observe(
    folder: Path, graphs: Graphs, variant: str, cudagraph_mode: str, compilation_mode: int = 0
) -> Seen:
    """Start two stages, serve with forced tokens, then measure the engine as it is, if it is right."""
    os.environ[EDITS] = f"pp_eager_fallback {variant}"
    os.environ["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] = EDITS
    llm = make_engine(
        str(make_qwen3_config(folder / "model")), cudagraph_mode, CAPTURE_SIZES, load_format="dummy",
        compilation_mode=compilation_mode, pipeline_parallel_size=2, worker_extension_cls=EXTENSION,
        distributed_executor_backend=os.environ.get(EXECUTOR, "mp"), max_num_seqs=CONCURRENCY,
    )  # fmt: skip
    served, num_graphs = watched(llm, eager=False)
    reference, _ = watched(llm, eager=True)
    is_right = max(relative_errors(served.logits, reference.logits)) <= TOLERANCE
    speeds = throughput(llm) if is_right else {}
    return Seen(served, reference, {}, {"graphs": float(num_graphs)}, speeds)


def watched(llm: Any, *, eager: bool) -> tuple[Served, int]:
    """Serve while the workers watch. Logits are the last rank's; work is counted on every rank."""
    (*_, (logits, replays, step_ms, num_graphs, _)), by_rank = (
        _watched_once(llm, eager, count) for count in (False, True)
    )
    counted = [
        [
            CountedStep({model: Amount(*amount) for model, amount in work.items()}, fits)
            for work, fits in steps
        ]
        for *_, steps in by_rank
    ]
    return Served([torch.from_numpy(kept) for kept in logits], replays, step_ms, counted), num_graphs


def _watched_once(llm: Any, eager: bool, count: bool) -> list[Any]:
    llm.collective_rpc("start_watching", args=(len(PROMPT_LENGTHS), eager, count, *llm.asked))
    generate(llm, PROMPT_LENGTHS)
    seen: list[Any] = llm.collective_rpc("stop_watching")
    return seen


def throughput(llm: Any) -> dict[str, float]:
    """A steady load: when a request ends the next one comes, while the others are in the middle of theirs.

    Returns:
        Requests a second; median time to the first token, of requests that find the engine busy; median time
        for each other token.
    """
    engine, waiting = llm.llm_engine, deque(range(NUM_REQUESTS))
    asked: dict[str, float] = {}
    tokens: dict[str, list[tuple[float, int]]] = {}  # when, and how many there were then

    def ask() -> None:
        i = waiting.popleft()
        asked[str(i)], tokens[str(i)] = time.perf_counter(), []
        engine.add_request(str(i), {"prompt_token_ids": prompt(i)}, sampling(i))

    tell_progress(0.85, "measuring")
    for _ in range(CONCURRENCY):
        ask()
    while engine.has_unfinished_requests():
        for output in engine.step():
            name = output.request_id.split("-")[0]  # vLLM may make an id unique by adding to it
            tokens[name].append((time.perf_counter(), len(output.outputs[0].token_ids)))
            if output.finished and waiting:
                ask()
    last = max(seen[-1][0] for seen in tokens.values())
    per_token = [(seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1]) for seen in tokens.values()]
    joined = [tokens[name][0][0] - asked[name] for name in asked if int(name) >= CONCURRENCY]
    return {
        "requests_per_s": NUM_REQUESTS / (last - min(asked.values())),
        "ttft_ms": 1e3 * median(joined),
        "tpot_ms": 1e3 * median(per_token),
    }


def prompt(i: int) -> list[int]:
    """Token ids of the i-th request."""
    return [(7 * i + n) % 2000 for n in range(PROMPT_TOKENS)]


def sampling(i: int) -> Any:
    """64 to 192 tokens, so that requests do not end together."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=64 + 37 * i % 129, temperature=0, ignore_eos=True, detokenize=False)


PP_EAGER_FALLBACK = {
    "eager": Variant(partial(observe, variant="eager", cudagraph_mode="NONE")),
    "eager_fallback": Variant(partial(observe, variant="eager_fallback", cudagraph_mode="FULL_DECODE_ONLY")),
    "moving_buffers": Variant(partial(observe, variant="moving_buffers", cudagraph_mode="FULL_DECODE_ONLY")),
    "persistent_buffers": Variant(
        partial(observe, variant="persistent_buffers", cudagraph_mode="PIECEWISE", compilation_mode=3)
    ),
    "full_and_piecewise": Variant(
        partial(
            observe, variant="full_and_piecewise", cudagraph_mode="FULL_AND_PIECEWISE", compilation_mode=3
        )
    ),
    "full_graphs": Variant(partial(observe, variant="full_graphs", cudagraph_mode="FULL_DECODE_ONLY")),
}
