"""Which attention metadata warm-up and capture see: one state for both, or a fresh one for each.

Releases before 0.22 are the first buggy version, and the mini runner's `shared_state` has to match them;
0.22 is `captured_reused`, 0.23 to 0.25 are `state_pair`, and since 0.26 (#48261) nothing is kept, as in
`fresh_always`. A variant speaks of the target and of the speculator: the second is what a manager keeps. A
state is known by the order in which states turn up.
"""

from importlib import import_module
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mrv2lab.cases.flashmla_lazy_init import captured_reused, fresh_always, shared_state, state_pair
from mrv2lab.graphs import emulated
from mrv2lab.runner.config import CUDAGraphMode
from mrv2lab.runner.cudagraph_utils import (
    AttentionStatePair,
    CudaGraphManager,
    attention_state,
    dummy_num_reqs,
)
from mrv2lab.runner.input_batch import InputBatch, InputBuffers
from mrv2lab.runner.model_runner import ModelRunner, capture_with_what_was_kept
from mrv2lab.upstream.model_runner import CPU, ModelState, NoBlocks, Setup

UTILS = "vllm.v1.worker.gpu.cudagraph_utils"
SETUPS = st.builds(
    Setup,
    st.sampled_from([mode.name for mode in CUDAGraphMode]),
    st.lists(st.integers(1, 24), min_size=1, max_size=4, unique=True).map(tuple),
    st.integers(1, 12),
)


class Notes:
    """Who ran what, in order, and with which state."""

    def __init__(self):
        self.states, self.events = [], []

    def number(self, state):
        """0 for the first state that turned up, 1 for the next new one, and so on; None for no state."""
        if state is None:
            return None
        if not any(known is state for known in self.states):
            self.states.append(state)
        return next(i for i, known in enumerate(self.states) if known is state)

    def run(self, what, cg_mode, state):
        """Note a forward pass, and whether it is being recorded into a FULL graph."""
        recording = getattr(emulated._capturing, "active", None) is not None
        phase = "capture" if recording or cg_mode.name == "PIECEWISE" else "warm-up"
        self.events.append((what, phase, cg_mode.name, self.number(state)))


VARIANTS = {"0.21": shared_state, "0.22": captured_reused, "0.23": state_pair, "0.26": fresh_always}
"""The mini runner's variant that a release is; the last one holds for all later releases."""


@pytest.fixture(scope="session")
def variant(release):
    """What the mini runner calls the release's behaviour."""
    return next(fn for since, fn in reversed(VARIANTS.items()) if release >= Version(since))


# ---- the manager alone ----


def upstream_factory(notes, described, variant):
    """A factory as the release calls it, with a new state from every call. `fresh_always` keeps none."""

    def create_forward_fn(desc, warmup=True):
        state = SimpleNamespace()

        def forward_fn(cg_mode):
            notes.run(described(desc), cg_mode, state)

        return forward_fn if variant is fresh_always else (forward_fn, state)

    return create_forward_fn


def mini_factory(notes, described, variant, speculator_states):
    """The mini runner's protocol: the variant builds the states of both passes at warm-up."""
    states = {}

    def create_forward_fn(desc, warmup):
        if warmup:
            states[desc], speculator_states[desc] = variant(SimpleNamespace)
        state = attention_state(states[desc], warmup=warmup)
        return lambda cg_mode: notes.run(described(desc), cg_mode, state), state

    return create_forward_fn


def kept(notes, described, attn_states, *, mode="FULL"):
    """What the speculator is given for the sizes of a mode; before 0.23 one state for both passes.

    A way to build states is none that was kept. Since 0.26 the release hands on nothing at all.
    """
    pairs = {
        described(desc): kept if hasattr(kept, "captured") else AttentionStatePair(kept, kept)
        for desc, kept in (attn_states or {}).items()
        if desc.cg_mode.name == mode and not callable(kept)
    }
    return {desc: (notes.number(pair.warmup), notes.number(pair.captured)) for desc, pair in pairs.items()}


@given(setup=SETUPS)
def test_warm_up_and_capture_see_the_same_states(upstream_manager, mini_config, described, variant, setup):
    theirs, ours, speculator_states = Notes(), Notes(), {}
    upstream_manager = upstream_manager(setup)
    upstream_manager.use_breakable_cg = False  # see test_differences
    upstream = upstream_manager.capture(upstream_factory(theirs, described, variant))
    manager = CudaGraphManager(mini_config(setup), "emulated")
    mini = manager.capture(mini_factory(ours, described, variant, speculator_states))
    assert ours.events == theirs.events
    assert kept(ours, described, speculator_states) == kept(theirs, described, upstream)
    if variant is fresh_always:  # what the mini runner's manager returns is for its own tests
        return
    # The draft has no PIECEWISE graphs here; what the manager itself keeps of them is compared instead.
    both = kept(ours, described, mini, mode="PIECEWISE"), kept(theirs, described, upstream, mode="PIECEWISE")
    assert both[0] == both[1]


# ---- the runner around it ----


def upstream_events(manager, setup, described):
    """What a model sees while the release's `ModelCudaGraphManager` captures it, and what is kept of it."""
    notes, size = Notes(), max(setup.capture_sizes)
    context = import_module("vllm.forward_context")
    buffers = import_module("vllm.v1.worker.gpu.input_batch").InputBuffers(setup.max_num_reqs, size, CPU)

    class State(ModelState):
        def prepare_attn(self, input_batch, *args, for_capture, **kwargs):
            shape = input_batch.num_tokens, input_batch.num_reqs, for_capture
            return {"layer": SimpleNamespace(shape=shape)}

    def model(input_ids, positions, **unused):
        seen = context.get_forward_context()
        state = seen.attn_metadata and seen.attn_metadata["layer"]
        what = state.shape if state else (len(input_ids), None, False)
        notes.run(what, seen.cudagraph_runtime_mode, state)
        return torch.zeros(len(input_ids), 1)

    manager.use_breakable_cg = False  # the model itself is called for PIECEWISE sizes, as a compiled one is
    no_cache = SimpleNamespace(kv_cache_groups=[])
    blocks = NoBlocks(setup.max_num_reqs, size)
    with patch(f"{UTILS}.has_compiled_submodule", return_value=True, create=True):  # asked since 0.30
        attn_states = manager.capture(model, State(), buffers, None, blocks, [], no_cache)
    states = {desc: layer_states(state) for desc, state in (attn_states or {}).items()}
    return notes.events, kept(notes, described, states)


def layer_states(state):
    """The layer's own state in what the release keeps: a state, or a pair of them."""
    if hasattr(state, "captured"):
        return AttentionStatePair(*map(layer_states, state))
    return state.attn_metadata and state.attn_metadata["layer"]


def mini_events(config, variant, described, release):
    """What the mini runner's own `capture_model` hands to its forward pass, and then to its speculator."""
    notes, buffers = Notes(), InputBuffers(config.max_num_reqs, config.max_num_tokens, CPU)

    def prepare_attn(batch, for_capture):
        shape = batch.num_tokens_after_padding, batch.num_reqs, for_capture
        return SimpleNamespace(shape=shape)

    def forward(batch, state, cg_mode, received):
        if release < Version("0.27") and not state.shape[-1]:  # PIECEWISE: see test_differences
            notes.run((batch.num_tokens_after_padding, None, False), cg_mode, None)
        else:
            notes.run(state.shape, cg_mode, state)

    def dummy_of(desc):
        num_reqs = desc.num_reqs or dummy_num_reqs(config, desc.num_tokens)
        return InputBatch.make_dummy(num_reqs, desc.num_tokens, buffers)

    def prepare_inputs_to_capture(desc):
        return prepare_attn(dummy_of(desc), desc.cg_mode is CUDAGraphMode.FULL)

    speculator_states = {}
    runner = SimpleNamespace(
        config=config, cudagraph_manager=CudaGraphManager(config, "emulated"), attention_states=variant,
        _dummy_of=dummy_of,
        prepare_inputs_to_capture=prepare_inputs_to_capture, captured_inputs=[],
        _dummy_intermediate_tensors=lambda n: None,
        _forward=forward, speculator=SimpleNamespace(capture=speculator_states.update),
        capture_speculator=capture_with_what_was_kept, select_dummy_loras=None,
    )  # fmt: skip
    ModelRunner.capture_model(runner)
    return notes.events, kept(notes, described, speculator_states)


@given(setup=SETUPS)
def test_models_see_the_same_dummy_batches_and_states(
    upstream_manager, mini_config, described, variant, release, setup
):
    upstream = upstream_events(upstream_manager(setup, "ModelCudaGraphManager"), setup, described)
    assert mini_events(mini_config(setup), variant, described, release) == upstream


def test_no_other_variant_matches(upstream_manager, mini_config, described, variant, release):
    setup = Setup("FULL", (2,), max_num_reqs=2)
    upstream = upstream_events(upstream_manager(setup, "ModelCudaGraphManager"), setup, described)
    events = {fn: mini_events(mini_config(setup), fn, described, release) for fn in VARIANTS.values()}
    assert [fn for fn, seen in events.items() if seen == upstream] == [variant]
