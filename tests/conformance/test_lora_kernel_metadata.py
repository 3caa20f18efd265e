"""`LoRAKernelMeta`: every tensor after every batch, what earlier batches left behind included.

Memory that nobody wrote holds the same byte on both sides. So whole tensors can be compared, and a write
that only one side makes shows.
"""

from dataclasses import fields

import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.upstream.platform import unwritten_memory

MAX_NUM_TOKENS, MAX_LORAS = 12, 5
UNWRITTEN = 0x5A
NAMES = [field.name for field in fields(LoRAKernelMeta) if field.name != "captured_lora_counts"]
COUNTS = (None, [1, 2, 4, 6])


def mappings(max_loras):
    """Several batches, one after the other; small ones and ones without any adapter come up often."""
    slot = st.integers(-1, max_loras - 1)
    batch = st.lists(slot, max_size=MAX_NUM_TOKENS)
    without = st.integers(0, MAX_NUM_TOKENS).map(lambda num_tokens: [-1] * num_tokens)
    return st.tuples(st.just(max_loras), st.lists(batch | without, min_size=1, max_size=4))


def upstream_class():
    from vllm.lora.ops.triton_ops.lora_kernel_metadata import LoRAKernelMeta

    return LoRAKernelMeta


def make_both(max_loras, counts):
    with unwritten_memory(UNWRITTEN):
        return [
            cls.make(max_loras, MAX_NUM_TOKENS, torch.device("cpu"), captured_lora_counts=counts or ())
            for cls in (upstream_class(), LoRAKernelMeta)
        ]


def assert_same(mini, upstream, name):
    assert mini.dtype == upstream.dtype and mini.tolist() == upstream.tolist(), name


def assert_same_meta(mini, upstream, num_tokens):
    for name in NAMES:
        assert_same(getattr(mini, name), getattr(upstream, name), name)
    for specialize in (False, True):
        _, *expected = upstream.meta_args(num_tokens, specialize)  # the mapping: see test_differences
        for i, (got, wanted) in enumerate(zip(mini.meta_args(num_tokens, specialize), expected, strict=True)):
            assert_same(got, wanted, f"argument {i}")


@given(
    example=st.integers(1, MAX_LORAS).flatmap(mappings),
    num_tokens=st.integers(0, MAX_NUM_TOKENS),
    counts=st.sampled_from(COUNTS),
)
def test_every_tensor_is_the_same_after_every_batch(example, num_tokens, counts):
    max_loras, batches = example
    upstream, mini = make_both(max_loras, counts)
    assert mini.captured_lora_counts == upstream.captured_lora_counts
    assert_same_meta(mini, upstream, num_tokens)
    for batch in batches:
        upstream.prepare_tensors(torch.tensor(batch, dtype=torch.long))
        mini.prepare_tensors(torch.tensor(batch, dtype=torch.long))
        assert_same_meta(mini, upstream, num_tokens)
