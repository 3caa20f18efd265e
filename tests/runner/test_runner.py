"""The mini runner: batches, cache, graphs and adapters, with no case in sight."""

import functools

import numpy as np
import pytest
import torch

from mrv2lab.errors import BadInput
from mrv2lab.runner import (
    CUDAGraphMode,
    Engine,
    InputBatch,
    ModelRunner,
    Request,
    RunnerConfig,
    SamplingParams,
)
from mrv2lab.runner.attention import Attention
from mrv2lab.runner.block_table import PAD_SLOT_ID, BlockTables
from mrv2lab.runner.cudagraph_utils import CudaGraphManager, get_uniform_token_count
from mrv2lab.runner.input_batch import InputBuffers
from mrv2lab.runner.model_runner import break_at_attention
from mrv2lab.runner.piecewise import PiecewiseDecoder

CPU = torch.device("cpu")
SMALL = {"num_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}


def make_runner(backend="emulated", **config):
    runner = ModelRunner(RunnerConfig(**SMALL | config), backend)
    runner.warm_up_and_capture()
    return runner


@pytest.fixture(scope="module")
def runner():
    """For tests that leave it as it was."""
    return make_runner()


def requests(n=3, max_tokens=4, **sampling):
    """Prompts of different lengths; adapters 1, 2 and none."""
    prompts = [tuple((7 * i + j) % 64 for j in range(3 + i)) for i in range(n)]
    return [
        Request(f"r{i}", prompt, max_tokens, (1, 2, 0)[i % 3], SamplingParams(**sampling))
        for i, prompt in enumerate(prompts)
    ]


def serve(runner, wanted):
    engine = Engine(runner)
    for request in wanted:
        engine.add_request(request)
    return list(iter(engine.step, None))


def tokens_of(steps):
    found = {}
    for step in steps:
        for req_id, (token,) in zip(step.req_ids, step.sampled_token_ids, strict=True):
            found.setdefault(req_id, []).append(token)
    return found


# ---- inputs ----


def test_buffers_are_written_in_place_and_padded():
    buffers = InputBuffers(max_num_reqs=4, max_num_tokens=8, device=CPU)
    addresses = {name: tensor.data_ptr() for name, tensor in vars(buffers).items()}
    full = [np.arange(8), np.arange(8), np.array([3, 5]), np.array([3, 9])]
    buffers.copy_from(*full)
    buffers.copy_from(np.array([5, 6, 7]), np.array([4, 0, 1]), np.array([1, 2]), np.array([5, 2]))
    assert buffers.input_ids.tolist() == [5, 6, 7, 3, 4, 5, 6, 7]  # behind the batch: left-overs, as in vLLM
    assert buffers.positions.tolist() == [4, 0, 1, 3, 4, 5, 6, 7]
    assert buffers.query_start_loc.tolist() == [0, 1, 3, 3, 3]
    assert buffers.seq_lens.tolist() == [5, 2, 0, 0]
    assert addresses == {name: tensor.data_ptr() for name, tensor in vars(buffers).items()}


def test_dummy_batch_is_spread_over_its_requests():
    buffers = InputBuffers(max_num_reqs=4, max_num_tokens=16, device=CPU)
    batch = InputBatch.make_dummy(3, 11, buffers)
    assert batch.num_scheduled_tokens.tolist() == [3, 3, 5]
    assert batch.query_start_loc.tolist() == [0, 3, 6, 11]
    assert batch.logits_indices.tolist() == [2, 5, 10]
    assert batch.input_ids.data_ptr() == buffers.input_ids.data_ptr()


def test_slots_follow_the_block_table_and_padding_keeps_nothing():
    tables = BlockTables(RunnerConfig(block_size=4, max_num_reqs=3, max_model_len=8, max_num_tokens=6), CPU)
    tables.set_block_ids(2, [5, 3])
    tables.set_block_ids(0, [7])
    tables.prepare(np.array([2, 0]), np.array([2, 2, 0]), np.array([3, 4, 1]))
    assert tables.input_block_table.tolist() == [[5, 3], [7, 0], [0, 0]]
    assert tables.slot_mapping.tolist() == [23, 12, 29, PAD_SLOT_ID, PAD_SLOT_ID, PAD_SLOT_ID]
    tables.prepare_dummy()
    assert tables.input_block_table.tolist() == [[5, 3], [7, 0], [0, 0]]  # left over, as in vLLM
    assert tables.slot_mapping.eq(PAD_SLOT_ID).all()


# ---- dispatch ----


@pytest.mark.parametrize(("num_reqs", "num_tokens", "size"), [(1, 1, 1), (3, 3, 4), (2, 5, 8), (5, 5, 8)])
def test_dispatch_takes_the_smallest_graph_that_holds_the_batch(runner, num_reqs, num_tokens, size):
    manager = runner.cudagraph_manager
    desc = manager.dispatch(num_reqs, num_tokens, get_uniform_token_count(num_reqs, num_tokens, 1))
    assert (desc.cg_mode, desc.num_tokens) == (CUDAGraphMode.FULL, size)


def test_dispatch_runs_eagerly_what_no_graph_holds(runner):
    manager = runner.cudagraph_manager
    assert manager.dispatch(1, 9, None).cg_mode is CUDAGraphMode.NONE
    assert CudaGraphManager(RunnerConfig(**SMALL), "emulated").dispatch(1, 1, 1).cg_mode is CUDAGraphMode.NONE
    assert make_runner(max_num_reqs=2).cudagraph_manager.dispatch(3, 3, 1).cg_mode is CUDAGraphMode.NONE


def test_largest_size_is_captured_first_and_sizes_share_a_pool(runner):
    manager = runner.cudagraph_manager
    assert [desc.num_tokens for desc in manager.graphs] == [8, 4, 2, 1]
    lent = set(manager.pool._blocks)
    first, second, *_ = (
        {a for node in g.nodes for a in node.addresses} & lent for g in manager.graphs.values()
    )
    assert first & second


def test_piecewise_sizes_are_captured_before_full_ones():
    config = RunnerConfig(**SMALL, cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE)
    order = [
        (desc.cg_mode.name, desc.num_tokens) for desc in CudaGraphManager(config, "emulated").capture_order
    ]
    assert order == [(mode, size) for mode in ("PIECEWISE", "FULL") for size in (8, 4, 2, 1)]


# ---- serving ----


def test_graphs_and_eager_give_the_same_logits(backend):
    eager = serve(make_runner(backend, cudagraph_mode=CUDAGraphMode.NONE), requests())
    full = serve(make_runner(backend, cudagraph_capture_sizes=(4, 8)), requests())
    assert [step.num_replays for step in full] == [0, 1, 1, 1]  # 12 prompt tokens fit no graph
    assert [step.num_replays for step in eager] == [0, 0, 0, 0]
    for step, reference in zip(full, eager, strict=True):
        torch.testing.assert_close(step.logits, reference.logits, rtol=1e-4, atol=1e-4)
    assert tokens_of(full) == tokens_of(eager)


def test_a_prompt_that_fits_a_graph_is_replayed_as_well(runner):
    assert [step.num_replays for step in serve(runner, requests(1))] == [1, 1, 1, 1]


def test_batching_does_not_change_what_a_request_gets(backend):
    runner = make_runner(backend, cudagraph_capture_sizes=(1, 8))
    together = tokens_of(serve(runner, requests(6, max_tokens=6)))
    alone = {r.req_id: tokens_of(serve(runner, [r]))[r.req_id] for r in requests(6, max_tokens=6)}
    assert together == alone


def test_decoding_with_a_cache_equals_one_long_prompt(runner):
    wanted = requests(1, max_tokens=12)[0]
    steps = serve(runner, [wanted])
    sequence = [*wanted.prompt_token_ids, *tokens_of(steps)["r0"]]
    whole = Request("r0", tuple(sequence[:-1]), 1, wanted.lora_id)
    (again,) = serve(runner, [whole])
    torch.testing.assert_close(again.logits, steps[-1].logits, rtol=1e-4, atol=1e-4)


def test_adapters_change_the_answer_and_each_is_its_own(runner):
    prompt = (1, 2, 3)
    logits = [serve(runner, [Request(f"r{i}", prompt, 1, i)])[0].logits for i in range(4)]
    distances = [(logits[i] - logits[j]).norm() / logits[j].norm() for i in range(4) for j in range(i)]
    assert min(distances) > 0.1


def test_more_adapters_than_slots_take_turns():
    runner = make_runner(max_loras=2, cudagraph_capture_sizes=(1, 4))
    first = [tokens_of(serve(runner, [Request("r", (1, 2, 3), 3, i)]))["r"] for i in (1, 2, 3, 4)]
    again = [tokens_of(serve(runner, [Request("r", (1, 2, 3), 3, i)]))["r"] for i in (1, 2, 3, 4)]
    assert first == again
    slots = runner.lora_manager.lora_index_to_id
    assert 4 in slots and len(set(slots)) == 2


def test_a_batch_never_holds_more_adapters_than_slots():
    steps = serve(make_runner(max_loras=1, cudagraph_capture_sizes=(2, 4)), requests(3))
    for step in steps:
        assert len({{"r0": 1, "r1": 2, "r2": 0}[r] for r in step.req_ids} - {0}) <= 1
    assert {len(tokens) for tokens in tokens_of(steps).values()} == {4}


def test_blocks_and_request_slots_come_back():
    runner = make_runner(max_num_reqs=2, cudagraph_capture_sizes=(2,))
    engine = Engine(runner)
    for round_ in range(3):
        for i in range(4):
            engine.add_request(Request(f"{round_}-{i}", (1, 2, 3), 5))
        while engine.step() is not None:
            pass
    config = runner.config
    assert sorted(engine.scheduler.free_blocks) == list(range(1, 1 + 2 * config.max_num_blocks))
    assert len(runner.req_states.free_indices) == 2


def test_forced_tokens_override_the_logits(runner):
    forced = (9, 8, 7)
    steps = serve(runner, [Request("r", (1, 2), 3, sampling=SamplingParams(forced_token_ids=forced))])
    assert tokens_of(steps) == {"r": [9, 8, 7]}
    free = serve(runner, [Request("r", (1, 2), 3, sampling=SamplingParams(forced_token_ids=(9,)))])
    assert tokens_of(free)["r"][0] == 9


def test_sampling_repeats_with_its_seed_and_differs_between_seeds(runner):
    def run(seed):
        return tokens_of(serve(runner, requests(1, max_tokens=8, temperature=5.0, seed=seed)))

    once = run(1)
    assert once == run(1)
    assert once != run(2)
    greedy = tokens_of(serve(runner, requests(1, max_tokens=8)))
    assert once != greedy


def test_specialised_grid_follows_the_number_of_adapters_when_run_eagerly():
    wanted = requests(3)
    plain = serve(make_runner(cudagraph_mode=CUDAGraphMode.NONE), wanted)
    special = serve(make_runner(cudagraph_mode=CUDAGraphMode.NONE, specialize_active_lora=True), wanted)
    for a, b in zip(plain, special, strict=True):
        assert a.logits.equal(b.logits)


# ---- refusals ----


@pytest.mark.parametrize(
    "request_",
    [Request("r", (), 1), Request("r", (1,) * 60, 9), Request("r", (1,) * 20, 1)],
    ids=["no prompt", "too long", "prompt longer than a batch"],
)
def test_a_request_that_can_never_run_is_refused(request_):
    with pytest.raises(BadInput, match="possible: at most"):
        Engine(ModelRunner(RunnerConfig(**SMALL, max_num_tokens=16), "emulated")).add_request(request_)


def test_sizes_out_of_range_are_refused():
    with pytest.raises(BadInput, match=r"max_loras=0 is out of range; possible: 1 to 16"):
        RunnerConfig(max_loras=0)


# ---- piecewise graphs ----

PIECEWISE = {"cudagraph_mode": CUDAGraphMode.PIECEWISE}
TWO_LAYERS = {"num_layers": 2}


@pytest.fixture(scope="module")
def eager_of_two():
    """The same requests, served eagerly by two layers."""

    @functools.cache
    def served(backend):
        return serve(make_runner(backend, cudagraph_mode=CUDAGraphMode.NONE, **TWO_LAYERS), requests())

    return served


def cut_at_attention(model, manager):
    return PiecewiseDecoder(model, backend=manager.backend, pool=manager.pool)


def leave_as_it_is(model, manager):
    return model


@pytest.mark.parametrize("make_pw_model", [break_at_attention, cut_at_attention])
def test_piecewise_graphs_give_the_logits_of_eager_runs(eager_of_two, backend, make_pw_model):
    eager = eager_of_two(backend)
    config = RunnerConfig(**SMALL | PIECEWISE | TWO_LAYERS, cudagraph_capture_sizes=(4, 8))
    runner = ModelRunner(config, backend, make_pw_model=make_pw_model)
    runner.warm_up_and_capture()
    pieces = serve(runner, requests())
    assert [step.num_replays for step in pieces] == [0, 3, 3, 3]  # one graph more than there are layers
    for step, reference in zip(pieces, eager, strict=True):
        torch.testing.assert_close(step.logits, reference.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make_pw_model", [break_at_attention, cut_at_attention])
def test_a_further_size_fits_into_the_memory_of_a_larger_one(make_pw_model):
    def pool_bytes(*sizes):
        config = RunnerConfig(**SMALL, **PIECEWISE, cudagraph_capture_sizes=sizes)
        runner = ModelRunner(config, "emulated", make_pw_model=make_pw_model)
        runner.warm_up_and_capture()
        return runner.cudagraph_manager.pool.num_bytes

    assert pool_bytes(7, 8) == pool_bytes(8)  # nobody holds what the graphs of size 8 hand to each other


def test_a_model_without_pieces_runs_eagerly_in_mode_piecewise():
    runner = ModelRunner(RunnerConfig(**SMALL | PIECEWISE), "emulated", make_pw_model=leave_as_it_is)
    runner.warm_up_and_capture()
    steps = serve(runner, requests(1))
    assert {step.cg_mode for step in steps} == {CUDAGraphMode.PIECEWISE}
    assert {step.num_replays for step in steps} == {0}


def test_full_and_piecewise_replays_one_graph_for_decodes_and_pieces_for_the_rest(eager_of_two, backend):
    mode = {"cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE}
    eager = eager_of_two(backend)
    runner = make_runner(backend, **mode, **TWO_LAYERS, cudagraph_capture_sizes=(4, 8, 32))
    steps = serve(runner, requests())
    assert [(step.cg_mode, step.num_replays) for step in steps] == [
        (CUDAGraphMode.PIECEWISE, 3),  # the prefill: one graph more than there are layers
        *[(CUDAGraphMode.FULL, 1)] * 3,
    ]
    for step, reference in zip(steps, eager, strict=True):
        torch.testing.assert_close(step.logits, reference.logits, rtol=1e-4, atol=1e-4)


def test_piecewise_pads_tokens_and_never_requests():
    runner = make_runner(**PIECEWISE, cudagraph_capture_sizes=(2, 4))
    desc = runner.cudagraph_manager.dispatch(num_reqs=1, num_tokens=3, uniform_token_count=3)
    assert (desc.num_tokens, desc.num_reqs) == (4, None)
    plan = Engine(runner)
    plan.add_request(requests(1)[0])
    scheduled = plan.scheduler.schedule()
    runner._update_states(scheduled)
    assert runner.prepare_inputs(scheduled, desc).num_reqs_after_padding == 1


def test_run_pw_graph_insists_on_the_runner_that_was_asked_for():
    manager = CudaGraphManager(RunnerConfig(**SMALL | PIECEWISE), "emulated")
    assert manager.run_pw_graph(lambda a: a + 1, {"a": 1}) == 2
    manager.use_breakable_cg = True
    with pytest.raises(AssertionError, match="without init_breakable_cg_runner"):
        manager.run_pw_graph(lambda a: a + 1, {"a": 1})
    manager.init_breakable_cg_runner(torch.neg)
    first = manager.breakable_cg_runner
    manager.init_breakable_cg_runner(torch.abs)
    assert manager.breakable_cg_runner is first
    assert first.pool is manager.pool


def test_the_seam_of_piecewise_mode_is_left_alone_in_other_modes():
    def raises(model, manager):
        raise AssertionError("called")

    for mode in (CUDAGraphMode.NONE, CUDAGraphMode.FULL):
        ModelRunner(RunnerConfig(**SMALL, cudagraph_mode=mode), "emulated", make_pw_model=raises)


def test_warm_up_and_capture_of_a_piecewise_size_share_one_attention_state():
    def create_forward_fn(desc, warmup):
        return passes.append, object()

    passes = []
    for mode, shared, ran in (
        (CUDAGraphMode.PIECEWISE, True, [CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE]),
        (CUDAGraphMode.FULL, False, [CUDAGraphMode.NONE, CUDAGraphMode.NONE]),
    ):
        config = RunnerConfig(**SMALL, cudagraph_mode=mode, cudagraph_capture_sizes=(1,))
        (states,) = CudaGraphManager(config, "emulated").capture(create_forward_fn).values()
        assert (states.warmup is states.captured) == shared
        assert passes == ran
        passes.clear()


# ---- the length attention sizes its work by ----


def test_attention_computes_no_further_than_max_seq_len(monkeypatch):
    widths = []
    context = Attention._context

    def spy(self, meta, num_tokens):
        slots, visible = context(self, meta, num_tokens)
        widths.append((slots.shape[1], visible.shape[1]))
        return slots, visible

    monkeypatch.setattr(Attention, "_context", spy)
    serve(make_runner(cudagraph_mode=CUDAGraphMode.NONE), requests(1, max_tokens=3))
    assert widths[1:] == [(3, 3), (4, 4), (5, 5)]  # the first was the dummy run


def test_a_full_capture_takes_the_longest_length_there_can_be():
    runner = make_runner(cudagraph_mode=CUDAGraphMode.NONE)
    batch = runner._prepare_dummy(2, 4)
    assert runner.prepare_attn(batch).max_seq_len == 2
    assert runner.prepare_attn(batch, for_capture=True).max_seq_len == runner.config.max_model_len
