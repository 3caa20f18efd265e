"""Where the mini runner differs from vLLM on purpose: what, why, and a look at both sides.

The random examples of the other files keep to what both sides have. Everything else stands in
`DIFFERENCES`, and a difference that is gone fails here until it is struck out.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version

from mrv2lab.errors import CaptureError
from mrv2lab.graphs import breakable, new_pool
from mrv2lab.runner import CUDAGraphMode, LoRAMapping, ModelRunner, RunnerConfig
from mrv2lab.runner.cudagraph_utils import CudaGraphManager
from mrv2lab.runner.input_batch import InputBatch, InputBuffers
from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.runner.punica_wrapper import PunicaWrapper
from mrv2lab.upstream.model_runner import CPU, ModelState, NoBlocks, Setup


def gpu(module):
    return import_module(f"vllm.v1.worker.gpu.{module}")


@dataclass(frozen=True)
class Difference:
    """One difference.

    Attributes:
        of: the class that differs.
        what: upstream, then the mini runner.
        reason: why it stays.
        exists: looks at both sides; given the fixtures `upstream_manager` and `mini_config`.
        since: the first release that differs; older ones do not have what differs.
        until: the first release that does not any more; None if the newest does.
    """

    of: str
    what: str
    reason: str
    exists: Callable[[SimpleNamespace], bool]
    since: str = "0.21"
    until: str | None = None


# ---- CudaGraphManager ----


def requests_are_lowered(make):
    setup = Setup("FULL", (6,), max_num_reqs=4)
    config = RunnerConfig(cudagraph_capture_sizes=(6,), max_num_reqs=4, uniform_decode=True)
    (theirs,) = next(iter(make.upstream_manager(setup)._capture_descs.values()))
    (ours,) = CudaGraphManager(config, "emulated").capture_descs
    return (theirs.num_reqs, ours.num_reqs) == (4, 3)


def piecewise_has_metadata(make):
    state = gpu("cudagraph_utils").prepare_inputs_to_capture(
        1, 1, ModelState(), gpu("input_batch").InputBuffers(1, 1, CPU), NoBlocks(1, 1), [],
        SimpleNamespace(kv_cache_groups=[]), skip_attn=True,
    )  # fmt: skip
    config = RunnerConfig(num_layers=1, cudagraph_mode=CUDAGraphMode.PIECEWISE, cudagraph_capture_sizes=(1,))
    runner = ModelRunner(config, "emulated")
    runner.capture_model()
    (ours,) = runner.attn_states.values()
    return state.attn_metadata is None and ours.warmup is not None


def capture_keeps_nothing(make):
    def create_forward_fn(desc, warmup=True):
        return lambda cg_mode: None

    setup = Setup("FULL", (1,), max_num_reqs=1)
    theirs = make.upstream_manager(setup).capture(create_forward_fn)
    ours = CudaGraphManager(make.mini_config(setup), "emulated")
    kept = ours.capture(lambda desc, warmup: (create_forward_fn(desc), None))
    return theirs is None and len(kept) == 1


def breaking_captures_are_prepared_again(make):
    setup, calls = Setup("PIECEWISE", (1,), max_num_reqs=1), []

    def create_forward_fn(desc, warmup=True):
        calls.append(warmup)
        return lambda cg_mode: None

    make.upstream_manager(setup).capture(create_forward_fn)
    theirs = calls.copy()
    calls.clear()
    ours = CudaGraphManager(make.mini_config(setup), "emulated")
    ours.capture(lambda desc, warmup: (create_forward_fn(desc, warmup), None))
    return (theirs, calls) == ([True, False], [True])


def pieces_are_asked_for(make):
    manager = make.upstream_manager(Setup("PIECEWISE", (1,), max_num_reqs=1), "ModelCudaGraphManager")
    manager.use_breakable_cg = False
    with pytest.raises(RuntimeError, match="piecewise CUDA graphs"):
        manager.capture(torch.nn.Identity(), *[None] * 6)
    return True


# ---- LoRA ----


def both_metas():
    theirs = import_module("vllm.lora.ops.triton_ops.lora_kernel_metadata").LoRAKernelMeta
    return [cls.make(4, 8, CPU) for cls in (theirs, LoRAKernelMeta)]


def mapping_is_an_argument(make):
    theirs, ours = (meta.meta_args(8, False) for meta in both_metas())
    return (len(theirs), len(ours)) == (7, 6)


def both_wrappers(slots, tokens):
    """Both wrappers after one batch, specialized to the number of adapters."""
    upstream = import_module("vllm.lora.punica_wrapper.punica_gpu").PunicaWrapperGPU
    lora_config = SimpleNamespace(max_loras=len(slots), specialize_active_lora=True)
    theirs = upstream(8, 8, CPU, lora_config=lora_config)
    mapping = import_module("vllm.lora.layers").LoRAMapping(tokens, tokens)
    theirs.update_metadata(mapping, slots, len(slots), 10)
    ours = PunicaWrapper(8, len(slots), 10, CPU, specialize_active_lora=True)
    ours.update_metadata(LoRAMapping(tokens, tokens), slots)
    return theirs, ours


def extended_vocabulary_has_a_row(make):
    theirs, ours = both_wrappers([1, 2], (1, 2))
    rows = theirs._embeddings_indices
    return rows.dim() == 2 and not theirs.embeddings_indices[0].any() and ours._embeddings_indices.dim() == 1


def indices_are_kept(make):
    names = ("_token_lora_indices", "_sampler_indices", "_sampler_indices_padded", "_seq_start_locs")
    theirs, ours = both_wrappers([1], (1,))
    return all(hasattr(theirs, name) and not hasattr(ours, name) for name in names)


# ---- input batches ----

FIELDS = {
    "num_reqs": "a property",
    "num_tokens": "the sum of num_scheduled_tokens",
    "query_start_loc_np": "the sums of num_scheduled_tokens",
    "seq_lens_cpu_upper_bound": "called seq_lens_np, and exact",
    "idx_mapping": "no sampling kernel reads it",
    "expanded_idx_mapping": "drafts are not verified",
    "expanded_local_pos": "drafts are not verified",
    "num_draft_tokens": "drafts are not verified",
    "num_draft_tokens_per_req": "drafts are not verified",
    "cu_num_logits": "one logit for each request",
    "cu_num_logits_np": "one logit for each request",
    "dcp_local_seq_lens": "no context parallelism",
    "is_prefilling_np": "the runner asks for the length of the prompt where it needs it",
    "has_structured_output_reqs": "no structured output",
}
"""Fields of vLLM's `InputBatch` that the mini runner's has not as a field of its own, and why."""

FIELDS_SINCE = {
    "0.23": {
        "num_computed_tokens_np": "the requests' state holds it",
        "prefill_len_np": "the runner holds it",
        "num_computed_prefill_tokens_np": "a prompt is scheduled whole",
        "max_seq_len_np": "only late stages of a pipeline that samples elsewhere read it",
    },
    "0.25": {
        "is_padding": "no kernel skips padding",
        "prompt_lens": "no attention whose window depends on the prompt",
    },
    "0.28": {
        "has_prefill": "any of is_prefilling",
        "max_query_len": "no graph takes queries of several lengths and a bound on them",
    },
    "0.30": {"fast_prefill": "no layers share a KV cache"},
    "0.31": {
        "decode_graph_eligible": "a batch with a prefill is no uniform decode",
        "prefill_runs_as_decode_np": "a prompt is scheduled whole",
    },
    "0.33": {
        "pcp": "no context parallelism",
        "num_admitted_draft_tokens": "drafts are not verified",
    },
}
"""Those that later releases have besides, by the first of the releases that were read."""


def batch_fields(make):
    theirs = {field.name for field in fields(gpu("input_batch").InputBatch)}
    known = set(FIELDS).union(
        *(more for since, more in FIELDS_SINCE.items() if make.release >= Version(since))
    )
    return theirs - {field.name for field in fields(InputBatch)} == known


def batches_of(num_reqs, num_tokens):
    """Both dummy batches, in buffers of which nothing is zero."""
    made = []
    for buffers_class, batch_class in (
        (gpu("input_batch").InputBuffers, gpu("input_batch").InputBatch),
        (InputBuffers, InputBatch),
    ):
        buffers = buffers_class(4, 8, CPU)
        buffers.positions.fill_(7)
        buffers.input_ids.fill_(7)
        made.append((batch_class.make_dummy(num_reqs, num_tokens, buffers), buffers))
    return made


def dummies_are_narrow(make):
    (theirs, _), (ours, _) = batches_of(1, 2)
    narrow = theirs.num_scheduled_tokens.itemsize == theirs.logits_indices.itemsize == 4
    return narrow and ours.num_scheduled_tokens.itemsize == ours.logits_indices.itemsize == 8


def the_last_takes_the_rest(make):
    (theirs, _), (ours, _) = batches_of(3, 5)
    lens = [batch.num_scheduled_tokens.tolist() for batch in (theirs, ours)]
    return lens == [[1, 2, 2], [1, 1, 3]]


def decodes_come_first(make):
    scheduled = SimpleNamespace(
        num_scheduled_tokens={"long": 3, "short": 1},
        total_num_scheduled_tokens=4,
        scheduled_spec_decode_tokens={},
    )
    runner = SimpleNamespace(
        req_states=SimpleNamespace(req_id_to_index=RecordsOrder()), input_buffers=None, device=CPU,
        decode_query_len=1,
    )  # fmt: skip
    orders = []
    upstream = gpu("model_runner").GPUModelRunner
    desc = SimpleNamespace(num_tokens=4, num_reqs=2)
    theirs = (upstream.prepare_inputs, desc)
    if hasattr(upstream, "gather_batch_req_state"):  # since 0.28; asked whether the run is a dummy
        theirs = (upstream.gather_batch_req_state, False)
    for method, told in (theirs, (ModelRunner.prepare_inputs, desc)):
        runner.req_states.req_id_to_index.asked = []
        with pytest.raises(AttributeError):  # all else that they need is missing
            method(runner, scheduled, told)
        orders.append(runner.req_states.req_id_to_index.asked)
    return orders == [["short", "long"], ["long", "short"]]


class RecordsOrder:
    """Stands for a dict of request indices, and remembers who was asked for."""

    def get(self, req_id):
        self.asked.append(req_id)
        return len(self.asked) - 1

    __getitem__ = get


# ---- breakable graphs ----


def upstream_breakable():
    return import_module("vllm.compilation.breakable_cudagraph")


def both_captures():
    """For each side its decorator and a new capture."""
    pool = torch.cuda.graph_pool_handle()
    ours = breakable.BreakableCUDAGraphCapture(backend="emulated", pool=new_pool("emulated"))
    return (
        (
            upstream_breakable().eager_break_during_capture,
            upstream_breakable().BreakableCUDAGraphCapture(pool),
        ),
        (breakable.eager_break_during_capture, ours),
    )


def raises(error, capture, fn):
    """Whether `fn` raises this error in the capture."""
    try:
        with capture:
            fn()
    except error:
        return True
    return False


def results_are_refused(make):
    answers = [
        raises(CaptureError, capture, decorate(lambda: torch.zeros(1)))
        for decorate, capture in both_captures()
    ]
    return answers == [False, True]


def failed_captures_are_emptied(make):
    def fail():
        raise KeyError

    (_, theirs), (_, ours) = both_captures()
    return (
        raises(KeyError, theirs, fail)
        and raises(KeyError, ours, fail)
        and len(theirs.segments) == 1
        and not ours.segments
    )


def full_mode_does_not_break(make):
    setup = Setup("FULL", (1,), max_num_reqs=1)
    context, mode = import_module("vllm.forward_context"), import_module("vllm.config").CUDAGraphMode
    config = make.upstream_manager(setup).vllm_config
    breaks = []
    for decorate, capture in both_captures():
        with (
            context.set_forward_context(None, config, num_tokens=1, cudagraph_runtime_mode=mode.FULL),
            capture,
        ):
            decorate(lambda: None)()
        breaks.append(capture.num_eager_breaks)
    return breaks == [0, 1]


def moved_inputs_are_refused(make):
    """Capture on one tensor, and replay with another."""
    config = make.upstream_manager(Setup("PIECEWISE", (1,), max_num_reqs=1)).vllm_config
    context, mode = import_module("vllm.forward_context"), import_module("vllm.config").CUDAGraphMode
    theirs = upstream_breakable().BreakableCUDAGraphWrapper(torch.neg, config)
    ours = breakable.BreakableCUDAGraphWrapper(torch.neg, backend="emulated", pool=new_pool("emulated"))
    desc, first, moved = context.BatchDescriptor(num_tokens=1), torch.zeros(1), torch.ones(1)
    with (
        torch.inference_mode(),
        context.set_forward_context(
            None, config, num_tokens=1, cudagraph_runtime_mode=mode.PIECEWISE, batch_descriptor=desc
        ),
    ):
        theirs(input=first), ours(input=first)
        accepted = theirs(input=moved).tolist() == [0]
    with pytest.raises(CaptureError, match="not where they were"):
        ours(input=moved)
    return accepted


DIFFERENCES = (
    Difference(
        "CudaGraphManager",
        "as many dummy requests as fit; with uniform_decode the mini runner takes fewer, to share evenly",
        "an early revision of #35162 did it, no release that was read; notebook 15 shows it; off by default",
        requests_are_lowered,
    ),
    Difference(
        "ModelRunner.capture_model",
        "no attention metadata in a PIECEWISE capture; the mini runner's has some",
        "its attention runs eagerly there, and without metadata it would need a case for nothing",
        piecewise_has_metadata,
        until="0.27",
    ),
    Difference(
        "ModelCudaGraphManager.capture",
        "refuses PIECEWISE graphs of a model that is neither compiled nor breaks; the mini runner calls it",
        "that is the bug of 0.22.1, which notebook 13 shows; the released wheels up to 0.29.0 call it too",
        pieces_are_asked_for,
        since="0.30",
    ),
    Difference(
        "CudaGraphManager.capture",
        "prepares a PIECEWISE size that breaks anew for the capture; the mini runner once for both passes",
        "between its breaks no pass reads metadata, and what breaks out reads that of the step",
        breaking_captures_are_prepared_again,
        since="0.26",
    ),
    Difference(
        "CudaGraphManager.capture",
        "returns nothing; the mini runner's returns what the passes ran with",
        "the releases before kept it, and three variants show what came of that",
        capture_keeps_nothing,
        since="0.26",
    ),
    Difference(
        "LoRAKernelMeta.meta_args",
        "begins with the mapping of tokens; the mini runner's leaves it out",
        "upstream's kernels do not read it, their host code compares its length",
        mapping_is_an_argument,
    ),
    Difference(
        "PunicaWrapper",
        "two rows of embedding indices, the first all zero; the mini runner keeps the second",
        "the first served a vocabulary extension that is gone upstream as well",
        extended_vocabulary_has_a_row,
        until="0.29",
    ),
    Difference(
        "PunicaWrapper",
        "keeps slots by token and by request, padded ones, and what other kernels than ours need",
        "metadata is made from the mapping at once, and nothing else reads them",
        indices_are_kept,
    ),
    Difference("InputBatch", "more fields: FIELDS, FIELDS_SINCE", "they say why for each", batch_fields),
    Difference(
        "InputBatch.make_dummy",
        "shares out what does not divide, one token each; in the mini runner the last request takes it all",
        "as in 0.23.0",
        the_last_takes_the_rest,
        since="0.27",
    ),
    Difference(
        "InputBatch.make_dummy",
        "lengths and logits indices are int32; in the mini runner int64, as indices of real batches are",
        "one type for both ways to make a batch",
        dummies_are_narrow,
    ),
    Difference(
        "ModelRunner.prepare_inputs",
        "orders requests by their tokens, decodes first; the mini runner keeps the scheduler's order",
        "its attention takes any mix, so no kernel needs the decodes together",
        decodes_come_first,
    ),
    Difference(
        "eager_break_during_capture",
        "hands on what a broken-out op returns; the mini runner refuses it, as upstream's docstring asks",
        "graphs behind the op would keep reading the first answer, silently",
        results_are_refused,
        since="0.22",
    ),
    Difference(
        "eager_break_during_capture",
        "does not break under a forward context of mode FULL; the mini runner's context has no mode",
        "it captures FULL graphs outside of breakable captures, where no op breaks",
        full_mode_does_not_break,
        since="0.22",
    ),
    Difference(
        "BreakableCUDAGraphCapture",
        "keeps the segments of a capture that failed; the mini runner throws them away",
        "half a model would be replayed",
        failed_captures_are_emptied,
        since="0.22",
    ),
    Difference(
        "BreakableCUDAGraphWrapper",
        "looks for moved inputs when it logs for debugging; the mini runner always looks",
        "the replay would read the old ones, silently",
        moved_inputs_are_refused,
        since="0.22",
    ),
)


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda d: d.exists.__name__)
def test_a_listed_difference_still_exists(difference, release, upstream_manager, mini_config):
    make = SimpleNamespace(upstream_manager=upstream_manager, mini_config=mini_config, release=release)
    ended = difference.until is not None and release >= Version(difference.until)
    if release < Version(difference.since) or ended:
        with pytest.raises((AssertionError, AttributeError, ImportError, TypeError)):
            assert difference.exists(make)
    else:
        assert difference.exists(make), f"{difference.of} no longer differs: strike out '{difference.what}'"
