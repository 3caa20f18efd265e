"""The Punica wrapper: from the adapter of each token and request to everything that kernels read."""

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.runner.punica_wrapper import LoRAMapping, PunicaWrapper, convert_mapping
from mrv2lab.upstream.platform import unwritten_memory

MAX_NUM_TOKENS, MAX_NUM_REQS, VOCAB_SIZE = 12, 6, 40
UNWRITTEN = 0x5A
NAMES = [field.name for field in fields(LoRAKernelMeta) if field.name != "captured_lora_counts"]


def has_no_adapter_twice(slots):
    ids = [lora_id for lora_id in slots if lora_id is not None]
    return len(set(ids)) == len(ids)


@st.composite
def slots_and_mappings(draw):
    """Adapters in their slots, some slots empty, and the mappings of several batches."""
    free_or_id = st.sampled_from([None, 1, 2, 3, 7, 40])
    slots = draw(st.lists(free_or_id, min_size=1, max_size=4).filter(has_no_adapter_twice))
    lora_id = st.sampled_from([0, *filter(None, slots)])
    tokens = st.lists(lora_id, min_size=1, max_size=MAX_NUM_TOKENS).map(tuple)
    requests = st.lists(lora_id, min_size=1, max_size=MAX_NUM_REQS).map(tuple)
    return slots, draw(st.lists(st.tuples(tokens, requests), min_size=1, max_size=3))


def make_both(max_loras, specialize):
    from vllm.lora.punica_wrapper.punica_gpu import PunicaWrapperGPU

    cpu = torch.device("cpu")
    lora_config = SimpleNamespace(max_loras=max_loras, specialize_active_lora=specialize)
    with unwritten_memory(UNWRITTEN):
        return (
            PunicaWrapperGPU(MAX_NUM_TOKENS, MAX_NUM_REQS, cpu, lora_config=lora_config),
            PunicaWrapper(MAX_NUM_TOKENS, max_loras, VOCAB_SIZE, cpu, specialize),
        )


def update_both(upstream, mini, slots, tokens, requests):
    from vllm.lora.layers import LoRAMapping as UpstreamMapping

    upstream.update_metadata(UpstreamMapping(tokens, requests), slots, len(slots), VOCAB_SIZE)
    mini.update_metadata(LoRAMapping(tokens, requests), slots)


def embeddings_indices(upstream):
    """The row that the embedding reads; up to 0.28 another one stands before it: see test_differences."""
    rows = upstream._embeddings_indices
    return rows if rows.dim() == 1 else rows[1]


def assert_same_meta(mini, upstream, num_rows, specialize):
    assert mini.captured_lora_counts == upstream.captured_lora_counts
    for name in NAMES:
        assert getattr(mini, name).tolist() == getattr(upstream, name).tolist(), name
    _, *expected = upstream.meta_args(num_rows, specialize)
    got = mini.meta_args(num_rows, specialize)
    assert [t.tolist() for t in got] == [t.tolist() for t in expected]


@given(example=slots_and_mappings(), specialize=st.booleans())
def test_every_batch_is_programmed_the_same(example, specialize):
    slots, batches = example
    upstream, mini = make_both(len(slots), specialize)
    for tokens, requests in batches:
        update_both(upstream, mini, slots, tokens, requests)
        assert convert_mapping(tokens, slots).tolist() == upstream.token_lora_indices.tolist()
        assert convert_mapping(requests, slots).tolist() == upstream.sampler_indices.tolist()
        assert mini._embeddings_indices.tolist() == embeddings_indices(upstream).tolist()
        assert_same_meta(mini.token_mapping_meta, upstream.token_mapping_meta, len(tokens), specialize)
        assert_same_meta(mini.prompt_mapping_meta, upstream.prompt_mapping_meta, len(requests), specialize)


@pytest.mark.parametrize("mapping", [((9,), (5,)), ((5,), (9,))])
def test_an_adapter_in_no_slot_is_refused_by_both(mapping):
    from vllm.lora.layers import LoRAMapping as UpstreamMapping

    slots = [5, None]
    upstream, mini = make_both(len(slots), specialize=False)
    with pytest.raises((ValueError, KeyError)):  # a KeyError since 0.25
        upstream.update_metadata(UpstreamMapping(*mapping), slots, len(slots), VOCAB_SIZE)
    with pytest.raises(ValueError):
        mini.update_metadata(LoRAMapping(*mapping), slots)
