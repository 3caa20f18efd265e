"""#47561 and #48261 on vLLM's own classes: what do kept attention states show when the speculator captures?

As the probe of `flashmla_lazy_init`, but attention follows a plan that the release's
`FlashAttnMLAMetadataBuilder` keeps in a buffer of its own. What is compiled in FlashAttention 3 stands in:
the function that makes the plan, and the kernels that follow it.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from mrv2lab.crash import Crash
from mrv2lab.kernels.flash_attn import flash_attn_with_kvcache, get_scheduler_metadata
from mrv2lab.upstream.model_runner import Setup
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.probe import Probe, Row, Seen, Variant
from mrv2lab.upstream.probes import flashmla_lazy_init as flashmla
from mrv2lab.upstream.probes.flashmla_lazy_init import (
    CAPTURED_STATE,
    LATENT,
    MAX_PAGES,
    NUM_HEADS,
    PAGE,
    ROPE,
    FreshStates,
    speculator_manager,
)

MAX_NUM_REQS = 8
SETUP = Setup("FULL_DECODE_ONLY", (2, 8), max_num_reqs=MAX_NUM_REQS)

CRASH = Crash(
    ("IllegalAccess: an illegal memory access was encountered: flash_fwd_combine_kernel",),
    within="worker/gpu/cudagraph_utils.py in capture",
)


class Attention(flashmla.Attention):
    """One layer that attends by the plan in vLLM's forward context."""

    def __init__(self, seed: int):
        super().__init__(seed)
        generator = torch.Generator().manual_seed(seed)
        self.k_cache = torch.randn(MAX_NUM_REQS * MAX_PAGES, PAGE, LATENT + ROPE, generator=generator)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **unused: Any) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, num_heads * latent]; one token a request."""
        metadata = import_module("vllm.forward_context").get_forward_context().attn_metadata["layer"]
        q = self.query[input_ids.long()].view(-1, NUM_HEADS, LATENT + ROPE)
        decode = metadata.block_table, metadata.seq_lens, LATENT, metadata.scheduler_metadata
        return torch.flatten(flash_attn_with_kvcache(q, self.k_cache, *decode, 0.2), 1)


def metadata_builder() -> Any:
    """The release's builder, with what its `_build_decode` asks of itself; the constructor wants a model."""
    compiled: Any = ModuleType("vllm.vllm_flash_attn")
    compiled.__getattr__ = lambda name: None  # other names that some release imports, and nobody calls here
    sys.modules[compiled.__name__] = compiled
    hands_on: Any = import_module("vllm.v1.attention.backends.fa_utils")  # since 0.32, and on CUDA only
    hands_on.__getattr__ = compiled.__getattr__
    module: Any = import_module("vllm.v1.attention.backends.mla.flashattn_mla")
    module.get_scheduler_metadata = lambda cache_seqlens, page_size, **unused: get_scheduler_metadata(
        cache_seqlens, page_size
    )
    builder = object.__new__(module.FlashAttnMLAMetadataBuilder)
    builder.__dict__.update(
        fa_aot_schedule=True, use_full_cuda_graph=True, max_cudagraph_size=MAX_NUM_REQS, max_num_splits=32,
        scheduler_metadata=torch.zeros(1 + 4 * MAX_NUM_REQS, dtype=torch.int32),
        num_heads=NUM_HEADS, dcp_world_size=1, page_size=PAGE, device=torch.device("cpu"),
        mla_dims=SimpleNamespace(qk_rope_head_dim=ROPE, kv_lora_rank=LATENT),
        kv_cache_spec=SimpleNamespace(dtype=torch.float32),
    )  # fmt: skip
    return builder


class ModelState(flashmla.ModelState):
    """Metadata as the builder makes it: lengths of the runner's buffer, and a view of its own."""

    def __init__(self) -> None:
        super().__init__()
        order = torch.randperm(MAX_NUM_REQS * MAX_PAGES, generator=torch.Generator().manual_seed(2))
        self.block_table = order.view(MAX_NUM_REQS, MAX_PAGES).int()
        self.builder = metadata_builder()

    def prepare_attn(self, input_batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        num_reqs = input_batch.num_reqs_after_padding
        table, seq_lens = self.block_table[:num_reqs], self.seq_lens[:num_reqs]
        starts = torch.arange(num_reqs + 1, dtype=torch.int32)
        offered = {
            "block_table_tensor": table, "seq_lens_device": seq_lens, "max_seq_len": PAGE * MAX_PAGES,
            "query_start_loc_cpu": starts, "query_start_loc_device": starts,
            "num_decode_tokens": num_reqs, "dcp_tot_seq_lens_device": None,
            "seq_lens_cpu": seq_lens, "max_query_len": 1,
        }  # fmt: skip
        wanted = signature(self.builder._build_decode).parameters
        return {"layer": self.builder._build_decode(**{name: offered[name] for name in wanted})}


def copied(state: Any, kept: list[Any]) -> Any:
    """The state with lengths and plan of every layer copied. Copies go to `kept`: a graph holds addresses."""
    names, layers = ("seq_lens", "scheduler_metadata"), state.attn_metadata
    copies = {of: {name: getattr(layer, name).clone() for name in names} for of, layer in layers.items()}
    kept.append(copies)
    return state._replace(attn_metadata={of: replace(layers[of], **own) for of, own in copies.items()})


class OwnCopies(FreshStates):
    """States built anew, with lengths and plan copied, so that no later build writes there."""

    def _build(self, desc: Any) -> Any:
        return copied(super()._build(desc), self.runner.__dict__.setdefault("copies", []))


def zeroed(runner: Any, kept: Any) -> Any:
    """What the target has kept; what the speculator keeps is zeroed before."""
    runner.speculator.output.zero_()
    return kept


def observe(setup: Setup = SETUP, states: Callable[[Any, Any], Any] | None = None) -> Seen:
    """Capture target and speculator as `capture_model` does, then decode at other lengths."""
    return flashmla.observe(setup=setup, states=states, attention=Attention, model_state=ModelState)


def word(outcome: Outcome) -> tuple[Word, str]:
    """From the speculator's capture to a word."""
    if outcome.verdict == "crash":
        return "buggy", f"{outcome.message} ({outcome.where})"
    return "fixed", "captured by the plan of the batch that is captured; right at other lengths"


def keeps_nothing() -> str | None:
    """Early releases never hand the target's states on."""
    manager = speculator_manager()
    is_early = manager.__module__.endswith("eagle.cudagraph")
    builds = "model_state" in signature(manager.capture).parameters
    return "the speculator builds its metadata itself" if is_early and builds else None


PROBE = Probe(
    variants={
        "eager": Variant(partial(observe, replace(SETUP, mode="NONE"))),
        "one_state": Variant(observe, (CAPTURED_STATE,), crash=CRASH),
        "kept_pairs": Variant(observe, crash=CRASH),
        "zeroed_buffers": Variant(partial(observe, states=zeroed), crash=CRASH),
        "own_copies": Variant(partial(observe, states=OwnCopies)),
        "fresh_inputs": Variant(partial(observe, states=FreshStates)),
    },
    rows=(Row(observe, word, bug=("crash",), needs=keeps_nothing, crash=CRASH),),
)
