"""Kept metadata in the engine: FlashAttention 3, a small Qwen3, and a head that drafts one token.

`get_scheduler_metadata` makes the plan that FlashAttention 3 follows, in memory that nobody has written. Each
of its vectors is as long as the batch, rounded up to 4, and only the batch's part of it is filled in
(vllm-project/flash-attention, hopper/flash_api.cpp and flash_prepare_scheduler.cu). The target is captured
for 4, 2 and 1 requests. So when the speculator warms up for 4, the buffer holds the plan of one request, and
for the others whatever lay in that memory before.

What lay there depends on the process and the GPU: #47561 crashed on an H100, #48261 names slices of an H200.
Here it is always the same number, so that the crash does not depend on luck.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.crash import WILD_POINTER, Crash
from mrv2lab.live.engine import Graphs, make_engine, serve
from mrv2lab.live.mla import PROMPT_LENGTHS, capture_speculator_with
from mrv2lab.live.models import make_qwen3
from mrv2lab.live.run import Seen, Variant, wrap
from mrv2lab.live.train import make_eagle_head
from mrv2lab.upstream.probes.flashmla_lazy_init import CAPTURED_STATE, FreshStates
from mrv2lab.upstream.probes.stale_view import OwnCopies, copied

CAPTURE_SIZES = (2, 4, 8)
"""Tokens, of which each request has two: at most 4 requests, so that every size has the same vectors."""

LEFT_OVER = -0x24242425
"""In each number that the planner does not write; all its bytes are 0xdb. As the length of a query it gives
FlashAttention 3's scheduler a negative row to write to, gigabytes from any memory of this process."""

CRASH = Crash(WILD_POINTER, within="spec_decode/autoregressive/cudagraph_utils.py in capture")
"""Asynchronous: the capture that follows a warm-up begins by waiting for it."""

Capture = Callable[[Any], int]


def observe(
    folder: Path,
    graphs: Graphs,
    cudagraph_mode: str = "FULL_DECODE_ONLY",
    states: Callable[[Any, Any], Any] | None = None,
    left_over: int | None = LEFT_OVER,
) -> Seen:
    """Start the engine, then serve; what drafts compute is compared as well.

    Args:
        states: what the speculator captures with, made of the runner and of what the target has kept.
        left_over: None for what the process itself leaves behind.
    """
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    if states is not None:
        capture_speculator_with(states)
    warmups: list[bool] = []
    wrap(GPUModelRunner, "capture_model", partial(watched, warmups=warmups, left_over=left_over))
    model = make_qwen3(folder / "model")
    head = str(make_eagle_head(folder / "head", model))
    llm = make_engine(
        str(model), cudagraph_mode, CAPTURE_SIZES, attention_backend="FLASH_ATTN",
        speculative_config={"method": "eagle", "model": head, "num_speculative_tokens": 1},
    )  # fmt: skip
    kernels = graphs.kernels(graphs.of_largest_size(llm)) if graphs.made else {}
    served = serve(llm, graphs, PROMPT_LENGTHS, drafts=True)
    reference = serve(llm, graphs, PROMPT_LENGTHS, eager=True, drafts=True)
    metrics = {
        "graphs": float(len(graphs.made)),
        "draft_warmups": float(len(warmups)),
        "draft_warmups_stale": float(sum(warmups)),
    }
    return Seen(served, reference, kernels, metrics)


def watched(capture_model: Capture, *, warmups: list[bool], left_over: int | None) -> Capture:
    """`capture_model`, told of every warm-up of the draft whether it is shown another batch."""
    from vllm.v1.attention.backends import flash_attn

    def capture(self: Any) -> int:
        prefill, plan = self.speculator._prefill, flash_attn.get_scheduler_metadata

        def warm_up(num_reqs: int, num_tokens: int, attn_metadata: Any, *args: Any, **kwargs: Any) -> None:
            if not torch.cuda.is_current_stream_capturing():
                seq_lens = next(iter(attn_metadata.values())).seq_lens.tolist()
                warmups.append(seq_lens != [num_tokens // num_reqs] * num_reqs)
            prefill(num_reqs, num_tokens, attn_metadata, *args, **kwargs)

        def planned(*args: Any, **kwargs: Any) -> Any:
            if left_over is not None:
                leave_behind(left_over)
            return plan(*args, **kwargs)

        with (
            patch.object(self.speculator, "_prefill", warm_up),
            patch.object(flash_attn, "get_scheduler_metadata", planned),
        ):
            return capture_model(self)

    return capture


def leave_behind(number: int, *, device: str = "cuda") -> None:
    """Let the allocator's small free blocks hold this number: 2 MiB, as much as it takes at a time."""
    blocks = [torch.empty(128, dtype=torch.int32, device=device) for _ in range(4096)]
    for block in blocks:
        block.fill_(number)


def zeroed(runner: Any, kept: Any) -> Any:
    """What the target has kept; what the speculator keeps is zeroed before."""
    runner.speculator.input_buffers.input_ids.zero_()
    runner.speculator.hidden_states.zero_()
    return kept


def observe_copies_of_fresh(folder: Path, graphs: Graphs) -> Seen:
    """Copies, where the speculator's manager makes its own states."""
    from vllm.v1.worker.gpu.spec_decode.autoregressive import cudagraph_utils

    kept: list[Any] = []  # a graph holds addresses, not tensors

    def with_copies(prepare: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: copied(prepare(*args, **kwargs), kept)

    wrap(cudagraph_utils, "prepare_inputs_to_capture", with_copies)
    return observe(folder, graphs)


STALE_VIEW = {
    "eager": Variant(partial(observe, cudagraph_mode="NONE")),
    "one_state": Variant(observe, (CAPTURED_STATE,), crash=CRASH),
    "kept_pairs": Variant(observe, crash=CRASH),
    "zeroed_buffers": Variant(partial(observe, states=zeroed), crash=CRASH),
    "own_copies": Variant(partial(observe, states=OwnCopies)),
    "fresh_inputs": Variant(partial(observe, states=FreshStates)),
}
