"""`CudaGraphManager`: what is captured, in which order, and which graph a batch is given."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mrv2lab.errors import BadInput
from mrv2lab.runner.attention import AttentionBackend, AttentionCGSupport
from mrv2lab.runner.config import CUDAGraphMode
from mrv2lab.runner.cudagraph_utils import CudaGraphManager, resolve_cudagraph_mode_and_sizes
from mrv2lab.runner.lora_utils import get_lora_capture_cases
from mrv2lab.upstream.model_runner import Setup

CAPTURE_SIZES = st.lists(st.integers(1, 48), min_size=1, max_size=6, unique=True).map(tuple)
SETUPS = st.builds(
    Setup, st.sampled_from([mode.name for mode in CUDAGraphMode]), CAPTURE_SIZES, st.integers(1, 24)
)
QUERY_LENS = st.one_of(
    st.lists(st.integers(1, 6), min_size=1, max_size=28),
    st.builds(lambda num_reqs, query_len: [query_len] * num_reqs, st.integers(1, 28), st.integers(1, 3)),
)
"""Tokens of each request; decodes, and batches whose requests all have the same number, come up often."""


def candidates_of(manager, num_tokens):
    """The release's own list; since 0.24 (#35536) there is one for each number of adapters."""
    if isinstance(manager._candidates, dict):
        return manager._candidates.get((num_tokens, 0), [])
    return manager._candidates[num_tokens] if num_tokens < len(manager._candidates) else []


def dispatch(manager, *batch):
    """The graph of a batch without adapters, for either side; older releases are not told how many it has."""
    return manager.dispatch(*batch, *[0] * ("num_active_loras" in signature(manager.dispatch).parameters))


@pytest.fixture(scope="session")
def both(upstream_manager, mini_config):
    """`both(setup)`: the two managers, as if everything were captured already."""

    def make(setup):
        managers = upstream_manager(setup), CudaGraphManager(mini_config(setup), "emulated")
        for manager in managers:
            manager._graphs_captured = True
        return managers

    return make


@given(setup=SETUPS)
def test_the_same_sizes_are_captured_in_the_same_order(both, described, setup):
    upstream, mini = both(setup)
    by_mode = {mode.name: descs for mode, descs in upstream._capture_descs.items()}
    captured = [described(desc) for name in ("PIECEWISE", "FULL") for desc in by_mode.get(name, [])]
    assert [described(desc) for desc in mini.capture_order] == captured
    assert upstream.needs_capture() == bool(mini.capture_descs)


@given(setup=SETUPS)
def test_the_same_candidate_for_every_number_of_tokens(both, described, setup):
    upstream, mini = both(setup)
    for num_tokens in range(1, 52):
        candidates = [described(desc) for desc in candidates_of(upstream, num_tokens)]
        assert [described(desc) for desc in mini.candidates(num_tokens)] == candidates


@given(setup=SETUPS, batches=st.lists(QUERY_LENS, min_size=1, max_size=8))
def test_batches_are_given_the_same_graph(both, described, uniform_token_count, setup, batches):
    upstream, mini = both(setup)
    for query_lens in batches:
        num_reqs, num_tokens = len(query_lens), sum(query_lens)
        uniform = uniform_token_count(num_reqs, num_tokens, max(query_lens))
        expected = dispatch(upstream, num_reqs, num_tokens, uniform)
        assert described(dispatch(mini, num_reqs, num_tokens, uniform)) == described(expected), query_lens


@given(setup=SETUPS, num_reqs=st.integers(1, 60), num_tokens=st.integers(0, 60))
def test_so_are_batches_that_no_scheduler_makes(both, described, setup, num_reqs, num_tokens):
    upstream, mini = both(setup)
    uniform = 1 if num_reqs == num_tokens else None
    expected = dispatch(upstream, num_reqs, num_tokens, uniform)
    assert described(dispatch(mini, num_reqs, num_tokens, uniform)) == described(expected)
    upstream._graphs_captured = mini._graphs_captured = False
    expected = dispatch(upstream, num_reqs, num_tokens, None)
    assert described(dispatch(mini, num_reqs, num_tokens, None)) == described(expected)


@pytest.fixture(scope="session")
def uniform_token_count(release):
    """The release's own answer to "how many tokens has every request", None if they differ."""
    if release < Version("0.28"):
        return import_module("vllm.v1.worker.gpu.cudagraph_utils").get_uniform_token_count
    # Since then a batch with a prefill is none; the mini runner looks at that itself.
    count = import_module("vllm.v1.worker.utils").get_uniform_decode_token_count
    return partial(count, decode_graph_eligible=True)


# ---- graphs keyed by adapters ----

LORA_UTILS = import_module("vllm.v1.worker.gpu.lora_utils")
LORA_CONFIGS = st.builds(
    lambda room, specialize: {"max_loras": room, "specialize_active_lora": specialize},
    st.integers(1, 9),
    st.booleans(),
)


def test_exactly_the_releases_before_0_24_key_no_graph_by_adapters(release):
    assert hasattr(LORA_UTILS, "get_lora_capture_cases") == (release >= Version("0.24"))


if hasattr(LORA_UTILS, "get_lora_capture_cases"):

    @given(setup=SETUPS, lora=LORA_CONFIGS, batch=st.tuples(st.integers(1, 28), st.integers(0, 12)))
    def test_batches_with_adapters_are_given_the_same_graph(
        upstream_manager, mini_config, described, setup, lora, batch
    ):
        num_reqs, num_active_loras = batch
        config = replace(mini_config(setup), **lora)
        upstream = upstream_manager(setup, lora_config=SimpleNamespace(**lora))
        mini = CudaGraphManager(config, "emulated", get_lora_capture_cases(config))
        found = []
        for manager in (upstream, mini):
            manager._graphs_captured = True
            desc = manager.dispatch(num_reqs, num_reqs, 1, num_active_loras)
            key = desc.num_active_loras if desc.cg_mode.name != "NONE" else None  # an eager batch needs none
            found.append((described(desc), key))
        assert mini.lora_capture_cases == upstream.lora_capture_cases
        assert found[0] == found[1]


@pytest.mark.parametrize("support", AttentionCGSupport)
@pytest.mark.parametrize("mode", CUDAGraphMode)
def test_a_mode_is_lowered_to_the_same_by_each_level_of_support(mode, support, caplog):
    """Without a compiler, whose pieces would be another way out."""
    from vllm.config import CompilationConfig, CompilationMode
    from vllm.v1.attention.backend import AttentionCGSupport as Upstream

    config = CompilationConfig(mode=CompilationMode.NONE, cudagraph_mode=mode.name)
    try:
        expected = config.resolve_cudagraph_mode_and_sizes(Upstream[support.name], "X").name
    except ValueError:
        expected = "refused"
    caplog.clear()
    try:
        lowered = resolve_cudagraph_mode_and_sizes(mode, AttentionBackend("X", support)).name
    except BadInput:
        lowered = "refused"
    assert lowered == expected
    assert bool(caplog.messages) == (lowered not in (mode.name, "refused"))
