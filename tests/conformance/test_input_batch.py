"""`InputBuffers` and `InputBatch`: dummy batches, and the padding of batches that are served."""

from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mrv2lab.runner.input_batch import InputBatch, InputBuffers
from mrv2lab.runner.model_runner import ModelRunner
from mrv2lab.runner.states import RequestState
from mrv2lab.upstream.model_runner import ModelState

MAX_NUM_REQS, MAX_NUM_TOKENS = 8, 40
CPU = torch.device("cpu")
SIZES = st.integers(1, MAX_NUM_REQS).flatmap(
    lambda num_reqs: st.tuples(st.just(num_reqs), st.integers(num_reqs, MAX_NUM_TOKENS))
)
HOST = ("num_reqs", "num_tokens_after_padding", "num_reqs_after_padding")
ARRAYS = ("idx_mapping_np", "num_scheduled_tokens")
TENSORS = ("input_ids", "positions", "query_start_loc", "seq_lens", "logits_indices")


def upstream_module():
    return import_module("vllm.v1.worker.gpu.input_batch")


def make_both():
    """Buffers of both, filled with what earlier batches may have left there."""
    both = [
        cls(max_num_reqs=MAX_NUM_REQS, max_num_tokens=MAX_NUM_TOKENS, device=CPU)
        for cls in (upstream_module().InputBuffers, InputBuffers)
    ]
    for buffers in both:
        for name in ("input_ids", "positions", "query_start_loc", "seq_lens"):
            getattr(buffers, name).fill_(77)
    return both


def values(batch):
    """Everything that both kinds of batch have, as lists."""
    host = {name: getattr(batch, name) for name in HOST}
    return host | {name: getattr(batch, name).tolist() for name in (*ARRAYS, *TENSORS)}


@given(sizes=st.lists(SIZES, min_size=1, max_size=3))
def test_dummy_batches_are_the_same_one_after_another(release, sizes):
    upstream, mini = make_both()
    for num_reqs, num_tokens in sizes:
        if release >= Version("0.27"):  # tokens that do not share out evenly: see test_differences
            num_tokens -= max(num_tokens % num_reqs - 1, 0)
        expected = upstream_module().InputBatch.make_dummy(num_reqs, num_tokens, upstream)
        batch = InputBatch.make_dummy(num_reqs, num_tokens, mini)
        assert values(batch) == values(expected)
        assert batch.seq_lens_np.tolist() == expected.seq_lens.tolist()
        # Behind the batch lies the padding that FULL graphs read.
        assert mini.query_start_loc.tolist() == upstream.query_start_loc.tolist()
        assert mini.seq_lens.tolist() == upstream.seq_lens.tolist()


@pytest.mark.parametrize(("num_reqs", "num_tokens"), [(n, t) for n in (0, 1, 3) for t in (0, 1, 2, 3)])
def test_both_refuse_the_same_dummy_batches(num_reqs, num_tokens):
    answers = []
    for cls, buffers in zip((upstream_module().InputBatch, InputBatch), make_both(), strict=True):
        try:
            answers.append(values(cls.make_dummy(num_reqs, num_tokens, buffers)))
        except AssertionError:
            answers.append("refused")
    assert answers[0] == answers[1]


# ---- a step that is served ----


@st.composite
def steps(draw):
    """Tokens of this step and tokens computed before it, for each request, and how far the batch is padded.

    In ascending order of their tokens, which is the order the release's runner puts them in.
    """
    request = st.tuples(st.integers(1, 4), st.integers(0, 9))
    requests = sorted(draw(st.lists(request, min_size=1, max_size=3)), key=lambda request: request[0])
    num_tokens = draw(st.integers(sum(n for n, _ in requests), 20))
    num_reqs = draw(st.none() | st.integers(len(requests), 6))
    return requests, SimpleNamespace(num_tokens=num_tokens, num_reqs=num_reqs)


def tables_of(requests):
    """[num_reqs, 13]: every token of every request, known to both sides."""
    return torch.randint(1, 99, (len(requests), 13), generator=torch.Generator().manual_seed(len(requests)))


def scheduled(requests):
    lens = {f"request-{i}": n for i, (n, _) in enumerate(requests)}
    return SimpleNamespace(
        num_scheduled_tokens=lens,
        total_num_scheduled_tokens=sum(lens.values()),
        scheduled_spec_decode_tokens={},
        has_structured_output_requests=False,
    )


def upstream_step(requests, desc, buffers):
    """The release's `GPUModelRunner.prepare_inputs`; a request decodes if it takes one token after others."""
    tokens, computed = tables_of(requests).int(), np.array([c for _, c in requests], dtype=np.int32)
    ends = np.array([c if n == 1 and c else c + n for n, c in requests], dtype=np.int32)  # of the prompts
    states = SimpleNamespace(
        req_id_to_index={f"request-{i}": i for i in range(len(requests))},
        prefill_len=SimpleNamespace(np=ends, gpu=torch.from_numpy(ends)),
        num_computed_prefill_tokens=np.minimum(computed, ends),
        is_prefilling=lambda index: (np.minimum(computed, ends) < ends)[index],  # asked for by 0.22
        num_computed_tokens=SimpleNamespace(gpu=torch.from_numpy(computed)),
        num_computed_tokens_np=computed,
        all_token_ids=SimpleNamespace(gpu=tokens),
        next_prefill_tokens=torch.zeros(1, len(requests), dtype=torch.int32),  # for one token ahead
        last_sampled_tokens=tokens.gather(1, torch.from_numpy(computed)[:, None].long()).long(),
        draft_tokens=torch.zeros(len(requests), 1, dtype=torch.int64),
    )
    runner = SimpleNamespace(
        req_states=states, input_buffers=buffers, device=CPU, max_num_reqs=MAX_NUM_REQS,
        num_speculative_steps=0, use_dcp=False, use_pp=False,
        # Asked for since: nothing of it is in use.
        decode_query_len=1, model_state=ModelState(), model_config=SimpleNamespace(rswa_window=None),
        pcp_manager=None, adaptive_verification=None, fast_prefill=None,
    )  # fmt: skip
    runner_class = import_module("vllm.v1.worker.gpu.model_runner").GPUModelRunner
    batch, output = [desc], scheduled(requests)
    if hasattr(runner_class, "gather_batch_req_state"):  # since 0.28 the order is made before
        state, _ = runner_class.gather_batch_req_state(runner, output, False)
        batch = [state, desc]
        if "num_active_loras" in signature(runner_class.prepare_inputs).parameters:
            batch.append(0)
    return runner_class.prepare_inputs(runner, output, *batch)


def mini_step(requests, desc, buffers):
    """The same of the mini runner, without adapters and without a KV cache."""
    states = RequestState(MAX_NUM_REQS, max_model_len=13)
    for i, (_, computed) in enumerate(requests):
        index = states.add_request(f"request-{i}", tables_of(requests)[i].tolist(), 0)
        states.num_computed_tokens[index] = computed
    runner = SimpleNamespace(
        req_states=states, input_buffers=buffers, block_tables=Mock(), lora_manager=Mock()
    )
    return ModelRunner.prepare_inputs(runner, scheduled(requests), desc)


@given(step=steps())
def test_a_step_is_prepared_and_padded_the_same(step):
    requests, desc = step
    upstream, mini = make_both()
    expected, batch = upstream_step(requests, desc, upstream), mini_step(requests, desc, mini)
    # The state of a request has an index of each side's own choice.
    expected.idx_mapping_np = batch.idx_mapping_np = np.zeros(0)
    assert values(batch) == values(expected)
    assert mini.query_start_loc.tolist() == upstream.query_start_loc.tolist()
    assert mini.seq_lens.tolist() == upstream.seq_lens.tolist()
