"""Drafts that are verified: the same answers in fewer steps, in every mode, with adapters and without."""

from functools import lru_cache

import pytest
import torch

from mrv2lab.cases.workload import serve
from mrv2lab.errors import BadInput
from mrv2lab.runner import CUDAGraphMode, ModelRunner, Request, RunnerConfig, SamplingParams
from mrv2lab.runner.pp_utils import PPGroup
from mrv2lab.runner.sampler import accept

SIZES = {"num_layers": 1, "max_num_reqs": 4, "cudagraph_capture_sizes": (4, 12)}


def requests(lora_ids=(1, 2, 0, 3), temperature=0.0):
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(128, (4 + i % 5,), generator=generator).tolist() for i in range(5)]
    return [
        Request(
            req_id=f"r{i}",
            prompt_token_ids=tuple(prompt),
            max_tokens=7 + i % 3,
            lora_id=lora_ids[i % 4],
            sampling=SamplingParams(temperature=temperature, seed=i),
        )
        for i, prompt in enumerate(prompts)
    ]


@lru_cache(maxsize=16)
def run(num_speculative_tokens, mode=CUDAGraphMode.NONE, backend="emulated", **kwargs):
    config = RunnerConfig(cudagraph_mode=mode, num_speculative_tokens=num_speculative_tokens, **SIZES)
    runner = ModelRunner(config, backend)
    runner.warm_up_and_capture()
    steps = serve(runner, [requests(**kwargs)], at_once=4)
    answers = {}
    for step in steps:
        for req_id, token_ids in zip(step.req_ids, step.sampled_token_ids, strict=True):
            answers.setdefault(req_id, []).extend(token_ids)
    return answers, steps


def num_accepted(steps):
    return sum(len(token_ids) - 1 for step in steps for token_ids in step.sampled_token_ids)


@pytest.mark.parametrize("mode", CUDAGraphMode)
def test_drafts_change_no_answer_and_save_steps(mode, backend):
    answers, steps = run(2, mode, backend)
    expected, without = run(0)
    assert answers == expected
    assert num_accepted(steps) > 0
    assert len(steps) < len(without)


def test_every_request_gets_what_it_asked_for_and_no_more():
    answers, _ = run(2)
    assert {r: len(tokens) for r, tokens in answers.items()} == {r.req_id: r.max_tokens for r in requests()}


def test_drawn_tokens_are_the_same_too():
    answers, steps = run(2, temperature=1.0)
    assert answers == run(0, temperature=1.0)[0]
    assert num_accepted(steps) > 0


def test_a_draft_without_adapters_is_oftener_right_for_requests_without():
    assert num_accepted(run(2, lora_ids=(0,) * 4)[1]) > num_accepted(run(2)[1])


def test_prefill_and_decode_of_the_draft_replay_graphs(backend):
    _, steps = run(2, CUDAGraphMode.FULL_DECODE_ONLY, backend)
    decodes = [step for step in steps if step.cg_mode is CUDAGraphMode.FULL]
    assert decodes and all(step.work["speculator"].nodes for step in decodes)
    # The batch of a prompt goes through no graph, the decodes of its drafts do.
    others = [step for step in steps if step.cg_mode is CUDAGraphMode.NONE]
    most = decodes[0].work["speculator"].nodes
    assert others and all(0 < step.work["speculator"].nodes < most for step in others)


def test_the_drafts_prefill_goes_through_breakable_graphs_too(backend):
    _, steps = run(1, CUDAGraphMode.PIECEWISE, backend)  # one draft: further ones are decodes, without pieces
    work = [step.work["speculator"] for step in steps if step.cg_mode is CUDAGraphMode.PIECEWISE]
    assert work and all(amount.nodes and amount.ops == amount.splitting for amount in work), work


@pytest.mark.parametrize(
    ("drafts", "token_ids", "accepted"),
    [([], [5], [5]), ([5, 6], [5, 6, 7], [5, 6, 7]), ([5, 6], [5, 9, 7], [5, 9]), ([5, 6], [9, 6, 7], [9])],
)
def test_tokens_are_taken_up_to_the_first_that_was_not_drafted(drafts, token_ids, accepted):
    assert accept(drafts, token_ids) == accepted


def test_drafts_in_a_pipeline_are_refused():
    with pytest.raises(BadInput, match="drafts with 2 pipeline stages"):
        ModelRunner(RunnerConfig(num_speculative_tokens=1), "emulated", pp_group=PPGroup(1, 2))
