"""Pipeline parallelism in the engine: two GPUs, vLLM's own worker processes, fixes taken out in each."""

import os
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mrv2lab.live.engine import Graphs, Served, generate, make_engine
from mrv2lab.live.models import make_qwen3_config
from mrv2lab.live.run import Seen, Variant

EXTENSION = "mrv2lab.live.extension.Extension"  # a name: importing it would import vLLM
EDITS = "MRV2LAB_LIVE_EDITS"
"""Environment variable: `CASE VARIANT` of the probe whose edits the workers make."""

PROMPT_LENGTHS = (5, 9, 17, 33)
NUM_REQUESTS, NUM_TOKENS = 64, 128
CAPTURE_SIZES = (1, 2, 4, 8, 16, 32, 64)


def observe(
    folder: Path, graphs: Graphs, variant: str, cudagraph_mode: str, compilation_mode: int = 0
) -> Seen:
    """Start two stages, serve with forced tokens, then measure the engine as it is."""
    os.environ[EDITS] = f"pp_eager_fallback {variant}"
    llm = make_engine(
        str(make_qwen3_config(folder / "model")), cudagraph_mode, CAPTURE_SIZES, load_format="dummy",
        compilation_mode=compilation_mode, pipeline_parallel_size=2, distributed_executor_backend="mp",
        worker_extension_cls=EXTENSION, max_num_seqs=NUM_REQUESTS,
    )  # fmt: skip
    served, num_graphs = watched(llm, eager=False)
    reference, _ = watched(llm, eager=True)
    return Seen(served, reference, {}, {"graphs": float(num_graphs)}, throughput(llm))


def watched(llm: Any, *, eager: bool) -> tuple[Served, int]:
    """Serve while the workers watch. What counts is the last rank's."""
    llm.collective_rpc("start_watching", args=(len(PROMPT_LENGTHS), eager))
    generate(llm, PROMPT_LENGTHS)
    *_, (logits, replays, step_ms, num_graphs) = llm.collective_rpc("stop_watching")
    return Served([torch.from_numpy(kept) for kept in logits], replays, step_ms), num_graphs


def throughput(llm: Any) -> dict[str, float]:
    """All requests arrive at once: requests a second, median time to the first token and for each other."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    engine, times = llm.llm_engine, {str(i): [] for i in range(NUM_REQUESTS)}  # type: ignore[var-annotated]
    for i in times:
        engine.add_request(i, {"prompt_token_ids": [(7 * int(i) + n) % 2000 for n in range(64)]}, params)
    start = time.perf_counter()
    while engine.has_unfinished_requests():
        for output in engine.step():
            times[output.request_id.split("-")[0]].append(
                (time.perf_counter(), len(output.outputs[0].token_ids))
            )
    wall_s = time.perf_counter() - start
    firsts = [seen[0] for seen in times.values()]
    per_token = [(seen[-1][0] - seen[0][0]) / (seen[-1][1] - seen[0][1]) for seen in times.values()]
    return {
        "requests_per_s": NUM_REQUESTS / wall_s,
        "ttft_ms": 1e3 * median(at - start for at, _ in firsts),
        "tpot_ms": 1e3 * median(per_token),
    }


PP_EAGER_FALLBACK = {
    "eager": Variant(partial(observe, variant="eager", cudagraph_mode="NONE"), uses_graphs=False),
    "eager_fallback": Variant(partial(observe, variant="eager_fallback", cudagraph_mode="FULL_DECODE_ONLY")),
    "moving_buffers": Variant(partial(observe, variant="moving_buffers", cudagraph_mode="FULL_DECODE_ONLY")),
    "persistent_buffers": Variant(
        partial(observe, variant="persistent_buffers", cudagraph_mode="PIECEWISE", compilation_mode=3)
    ),
    "full_graphs": Variant(partial(observe, variant="full_graphs", cudagraph_mode="FULL_DECODE_ONLY")),
}
