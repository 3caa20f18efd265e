"""Piecewise graphs without a compiler. vLLM #42304 (breakable graphs), #44050 (the same for MRV2).

Attention sizes its work by `max_seq_len`, a number of the HOST's that grows with every token. Captured
whole, in the mini runner it attends for ever to the length of the dummy batch; vLLM captures FULL graphs
with the longest that may be (`v1/worker/gpu/model_states/default.py`). Its piecewise graphs leave attention
out, but it was torch.compile that cut the model there. #42304 lets the capture itself break at attention.
Where nothing cuts and nothing breaks, mode PIECEWISE is asked for and no graph is ever made. vLLM says so
(`config/vllm.py`, level INFO), but not where breakable graphs are asked for and a runner, as MRV2 in 0.22.1,
does not look at that. And FULL graphs instead need an attention backend that supports them.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

from mrv2lab.cases.base import Case, Variant
from mrv2lab.cases.exercises.breakable_graph import EXERCISE
from mrv2lab.cases.serving import Served, Serving, Shape, config_of
from mrv2lab.cases.workload import no_adapters, without_adapters
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.breakable import eager_break_during_capture
from mrv2lab.runner import CUDAGraphMode, ModelRunner
from mrv2lab.runner.attention import DEVICE_LENGTHS, min_cg_backend
from mrv2lab.runner.cudagraph_utils import CudaGraphManager, resolve_cudagraph_mode_and_sizes
from mrv2lab.runner.model import Decoder
from mrv2lab.runner.piecewise import PiecewiseDecoder

RunModel = Callable[..., torch.Tensor]
"""Token ids and positions to hidden states: what `run_pw_graph` calls."""


def unrouted(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """Hand the plain model to PIECEWISE batches. MRV2 before #44050, without torch.compile."""
    return model


def whole_graph(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """Capture the whole model for PIECEWISE batches: it has no op at which the capture would break."""
    manager.use_breakable_cg = True
    return model


def breakable(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """Capture the whole model for PIECEWISE batches, and break at attention. What #42304 and #44050 did."""
    manager.use_breakable_cg = True
    for index in range(len(model.layers)):
        attn = model.layer(index).attn
        # Attention runs eagerly between two graphs, and reads the lengths of the batch that runs now.
        attn.op = eager_break_during_capture(attn.op)
    return model


def piecewise(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """Cut the model at attention beforehand, and capture each piece. What torch.compile does for vLLM."""
    return PiecewiseDecoder(model, backend=manager.backend, pool=manager.pool)


def full_graph(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """Ask for FULL graphs instead: attention is captured too, sized for the longest context there may be."""
    manager.set_mode(CUDAGraphMode.FULL)
    return model


def downgraded(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """Ask for FULL graphs of decodes from attention that supports none: vLLM lowers the mode, and says so."""
    for index in range(len(model.layers)):
        model.layer(index).attn.use(DEVICE_LENGTHS)
    mode = resolve_cudagraph_mode_and_sizes(CUDAGraphMode.FULL_DECODE_ONLY, min_cg_backend(model))
    manager.set_mode(mode)
    return model


def eager(model: Decoder, manager: CudaGraphManager) -> RunModel:
    """The same as `unrouted`, in a runner that asks for no graphs: mode NONE never comes here."""
    return unrouted(model, manager)


def decode_graphs(served: Served) -> list[CapturedGraph]:
    """Of all graphs replayed, those of the first replayed step with a full batch; empty if there is none."""
    before = 0
    for step in served.steps:
        if step.num_replays and len(step.req_ids) == served.shape["batch_size"]:
            return served.replayed[before : before + step.num_replays]
        before += step.num_replays
    return []


def segments(served: Served) -> dict[str, float]:
    """Graphs of one step, and what capturing them costs."""
    cost = capture_cost(served.variant, served.runner.backend, served.shape)
    return {"segments_per_step": len(decode_graphs(served)), **cost}


def capture_cost(variant: Variant, backend: str, shape: Shape) -> dict[str, float]:
    """Time and memory of capturing every size, on a GPU only; by now all kernels have been compiled."""
    if backend != "cuda" or not variant.uses_graphs:
        return {}
    runner = make_runner(variant, backend, shape)
    runner.dummy_run(runner.config.max_num_tokens)
    torch.cuda.synchronize()
    start = time.perf_counter()
    runner.capture_model()
    torch.cuda.synchronize()
    capture_ms = (time.perf_counter() - start) * 1e3
    return {"capture_ms": capture_ms, "pool_bytes": runner.cudagraph_manager.pool.num_bytes}


def make_runner(variant: Variant, backend: str, shape: Shape, **changes: Any) -> ModelRunner:
    """A runner whose PIECEWISE batches call what the variant makes of the model."""
    config = config_of(variant, shape, CUDAGraphMode.PIECEWISE, **changes)
    return ModelRunner(config, backend, no_adapters, make_pw_model=variant.fn)


BASELINE = Variant(eager, "baseline", "correct", uses_graphs=False)
SERVING = Serving(make_runner, BASELINE, without_adapters, decode_graphs, segments)

CASE = Case(
    name="breakable_graph",
    title="Attention in pieces, with no compiler to cut them",
    upstream="vllm-project/vllm #42304 (breakable graphs), #44050 (for Model Runner V2)",
    variants=(
        BASELINE,
        Variant(unrouted, "buggy", "eager", finding=("silent-eager", "ModelRunner.run_model")),
        Variant(whole_graph, "buggy", "wrong", finding=("frozen-host-value", "max_seq_len")),
        Variant(downgraded, "tempting", "eager", finding=("silent-eager", "ModelRunner.run_model")),
        Variant(piecewise, "fixed", "correct"),
        Variant(breakable, "fixed", "correct"),
        Variant(full_graph, "fixed", "correct"),
    ),
    observe=SERVING.observe,
    audit_step=SERVING.audit,
    exercise=EXERCISE,
)
