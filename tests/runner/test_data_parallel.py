"""Data-parallel ranks: each pads as the one with most tokens, and none is in a graph while another is not."""

import pytest
import torch

from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, Request, RunnerConfig
from mrv2lab.runner.cudagraph_utils import CudaGraphManager
from mrv2lab.runner.dp_utils import DPGroup, dispatch_cg_and_sync_dp
from mrv2lab.runner.pp_executor import run_stages

SMALL = {"num_layers": 1, "hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}


def wanted(rank):
    """Rank 0 has one request, rank 1 three that go on for longer."""
    return [Request(f"r{i}", (7 + i, 1 + rank, 5), 3 + 2 * rank) for i in range(1 + 2 * rank)]


def serve(rank, world_size, mode):
    group = DPGroup(rank, world_size)
    config = RunnerConfig(**SMALL, cudagraph_mode=mode, cudagraph_capture_sizes=(1, 4))
    runner = ModelRunner(config, "emulated", dp_group=group)
    runner.warm_up_and_capture()
    engine = Engine(runner)
    for request in wanted(rank):
        engine.add_request(request)
    tokens, padded = {}, []
    while (world_size > 1 and group.all_gather((engine.num_unfinished,)).any()) or engine.num_unfinished:
        if engine.num_unfinished:
            output = engine.step()
            for req_id, token_ids in zip(output.req_ids, output.sampled_token_ids, strict=True):
                tokens.setdefault(req_id, []).extend(token_ids)
        else:
            runner.execute_dummy_batch()
        across = runner.num_tokens_across_dp
        padded.append(across.tolist() if across is not None else None)
    return tokens, padded


def serve_as_rank(pp_group, mode):
    return serve(pp_group.rank_in_group, pp_group.world_size, mode)


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.FULL_DECODE_ONLY])
def test_two_ranks_pad_alike_and_answer_as_each_would_alone(mode):
    (first, padded), (second, also) = run_stages(serve_as_rank, mode, backend="emulated")
    assert padded == also
    assert all(mine == other for mine, other in padded[1:]), padded
    assert padded[1] == [4, 4]  # one token beside three
    assert padded[-1] == [4, 4]  # a dummy batch beside three
    assert (first, second) == (serve(0, 1, mode)[0], serve(1, 1, mode)[0])


class Told(DPGroup):
    """A rank whose partner says something."""

    def __init__(self, *partner):
        super().__init__(0, 2)
        self.partner = partner

    def all_gather(self, values):
        return torch.tensor([values, self.partner])


def dispatched(mode, shape, partner):
    manager = CudaGraphManager(RunnerConfig(**SMALL, cudagraph_mode=mode), "emulated")
    manager._graphs_captured = True
    return dispatch_cg_and_sync_dp(manager, *shape, 0, Told(*partner))


def test_one_rank_that_must_run_eagerly_takes_all_with_it():
    desc, across = dispatched(CUDAGraphMode.FULL, (2, 2, 1), (60, 0, 0))
    assert (desc.cg_mode, desc.num_tokens, across.tolist()) == (CUDAGraphMode.NONE, 2, [2, 60])


def test_ranks_of_other_kinds_of_batches_share_no_graph_of_decodes():
    desc, _ = dispatched(CUDAGraphMode.FULL_AND_PIECEWISE, (2, 2, 1), (5, 1, 0))
    assert (desc.cg_mode, desc.num_tokens) == (CUDAGraphMode.PIECEWISE, 8)
    desc, _ = dispatched(CUDAGraphMode.FULL_AND_PIECEWISE, (2, 2, 1), (5, 2, 1))
    assert (desc.cg_mode, desc.num_tokens) == (CUDAGraphMode.FULL, 8)
